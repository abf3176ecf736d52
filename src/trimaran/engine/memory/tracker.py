"""Tracker: every storage that lives while code runs, by what it is for; the peak of their sum, and its parts then.

Works on real tensors and on fake ones, which have sizes but no memory. A storage counts from the operation that makes
it until nothing refers to it. FSDP2 empties and refills storages in place, which is followed too.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

OTHER, WORKING = "other", "working"


class Held:
    """A storage that lives."""

    __slots__ = ("key", "part", "reference", "size")

    def __init__(self, key: int, size: int, part: str) -> None:
        self.key, self.size, self.part = key, size, part
        self.reference: Any = None  # weak; what tells when it is gone


class Tracker(TorchDispatchMode):
    """What the backward pass makes is WORKING, the rest is of the part in `making`, until `name` says otherwise.
    `label` is called at each new peak, to name what found its place after it was made."""

    def __init__(self, label: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.label, self.making = label, OTHER
        self.held: dict[int, Held] = {}
        self.totals: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """Forget the peak; what lives goes on to count."""
        self.now, self.peak = sum(self.totals.values()), 0
        self.peak_parts: dict[str, int] = {}
        self.own_peaks: Counter[str] = Counter(self.totals)  # of each part by itself

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        if self.now > self.peak:  # storages go between operations, so after each one is when to look
            self.label()
            self.peak, self.peak_parts = self.now, dict(self.totals)
        return result

    def see(self, tensor: Tensor) -> list[Held]:
        """The records of a tensor's storages, made at their first sight: several where it is put together of others."""
        if is_traceable_wrapper_subclass(tensor):  # a DTensor, or 8-bit numbers with their scales
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            return [held for part in parts if isinstance(part, Tensor) for held in self.see(part)]
        return [] if tensor.device.type == "meta" else [self._record(tensor)]

    def _record(self, tensor: Tensor) -> Held:
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self.held.get(key)
        if held is None:
            in_backward = torch._C._current_graph_task_id() != -1
            held = self.held[key] = Held(key, 0, WORKING if in_backward else self.making)
            held.reference = weakref.ref(storage, lambda _: self._gone(held))
            self._resized(held, storage.nbytes())
        return held

    def name(self, tensors: Iterable[Tensor], part: str) -> None:
        """These tensors' storages are of this part."""
        for tensor in tensors:
            for held in self.see(tensor):
                self.totals[held.part] -= held.size
                self.totals[part] += held.size
                held.part = part

    def _resized(self, held: Held, size: int) -> None:
        self.now += size - held.size
        self.totals[held.part] += size - held.size
        self.own_peaks[held.part] = max(self.own_peaks[held.part], self.totals[held.part])
        held.size = size

    def _gone(self, held: Held) -> None:
        self._resized(held, 0)
        del self.held[held.key]

    def __enter__(self) -> Self:
        original = torch.UntypedStorage.resize_
        self._original = original

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            held = self.held.get(storage._cdata)
            if held is not None:
                self._resized(held, size)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.UntypedStorage.resize_ = self._original  # type: ignore[method-assign]
        super().__exit__(*raised)
