"""Tracker: every live storage, by what it is for; the peak of their sum, and its parts at that moment.

Works on real tensors and on fake ones, which have sizes but no memory. A storage counts from the operation that creates
it until nothing refers to it. FSDP2 resizes storages in place, which is tracked too.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

OTHER, WORKING = "other", "working"


@dataclass(slots=True)
class LiveStorage:
    key: int
    size: int
    part: str
    reference: Any = None  # weak: its callback says when the storage is freed


class Tracker(TorchDispatchMode):
    """What the backward pass creates is WORKING, the rest is of the part in `making`, until `name` says otherwise.
    `label` is called at each new peak, to name what got its role after it was created."""

    def __init__(self, label: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.label, self.making = label, OTHER
        self.live: dict[int, LiveStorage] = {}
        self.totals: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """Forget the peak, not what is live."""
        self.now, self.peak = sum(self.totals.values()), 0
        self.peak_parts: dict[str, int] = {}
        self.own_peaks: Counter[str] = Counter(self.totals)  # of each part, whenever it occurs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.track(leaf)
        if self.now > self.peak:  # storages are freed between operations, so the peak is right after one
            self.label()
            self.peak, self.peak_parts = self.now, dict(self.totals)
        return result

    def track(self, tensor: Tensor) -> list[LiveStorage]:
        """A tensor's storages: several where it wraps other tensors."""
        if is_traceable_wrapper_subclass(tensor):  # a DTensor, or quantized values with their scales
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            return [live for part in parts if isinstance(part, Tensor) for live in self.track(part)]
        return [] if tensor.device.type == "meta" else [self._storage(tensor)]

    def _storage(self, tensor: Tensor) -> LiveStorage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        live = self.live.get(key)
        if live is None:
            in_backward = torch._C._current_graph_task_id() != -1
            live = self.live[key] = LiveStorage(key, 0, WORKING if in_backward else self.making)
            live.reference = weakref.ref(storage, lambda _: self._freed(live))
            self._resized(live, storage.nbytes())
        return live

    def name(self, tensors: Iterable[Tensor], part: str) -> None:
        """Assign these tensors' storages to this part."""
        for tensor in tensors:
            for live in self.track(tensor):
                self.totals[live.part] -= live.size
                self.totals[part] += live.size
                live.part = part

    def _resized(self, live: LiveStorage, size: int) -> None:
        self.now += size - live.size
        self.totals[live.part] += size - live.size
        self.own_peaks[live.part] = max(self.own_peaks[live.part], self.totals[live.part])
        live.size = size

    def _freed(self, live: LiveStorage) -> None:
        self._resized(live, 0)
        del self.live[live.key]

    def __enter__(self) -> Self:
        original = torch.UntypedStorage.resize_
        self._original = original

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            live = self.live.get(storage._cdata)
            if live is not None:
                self._resized(live, size)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.UntypedStorage.resize_ = self._original  # type: ignore[method-assign]
        super().__exit__(*raised)
