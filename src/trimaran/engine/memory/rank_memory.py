"""The exact memory of one rank: whole steps of its Trainer on fake tensors, in a fake process group. Nothing is
computed or allocated, so any rank of any layout fits a laptop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from trimaran.engine.memory.tracker import OTHER, Tracker
from trimaran.engine.optimizer.adam import MOMENTS, adamw_8bit, create_moments
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.parallel.zero import Weights, build_weights
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job
from trimaran.spec.own_engine import LEAST_8BIT

PARTS = ("weights", "master", "gradients", "optimizer", "activations", "logits", "working", "inputs", "other")
STEPS = 2  # the first creates the optimizer's states, the second is like all that follow


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank in the steady state: a step that is not the first."""

    rank: int
    peak: int
    parts: dict[str, int]  # at the moment of the peak, by the names in PARTS
    own_peaks: dict[str, int]  # of each part, whenever it occurs
    micro_batches: int  # that were run: more would not change the peak


def rank_memory(job: Job, rank: int, progress: Callable[[float], None] = lambda share: None) -> RankMemory:
    count = enough_micro_batches(job)
    short_job = job.model_copy(
        update={"batch": job.batch.replace(size=count * job.layout.dp * job.layout.micro_batch, ramp=None)}
    )
    if job.optimizer == "adam-8bit":
        # torchao caches its quantization tables for the process. With fake tensors they would have no values, so a
        # real tensor is quantized first.
        create_moments(adamw_8bit([nn.Parameter(torch.zeros(LEAST_8BIT))]))
    with fake_world(short_job, rank) as world:
        weights = build_weights(short_job, world)
        with FakeTensorMode(allow_non_fake_inputs=True):
            tracked = TrackedTrainer(short_job, world, weights, FakeTracker(), progress)
            for _ in range(STEPS):
                tracked.step()
            tracker = tracked.tracker
    parts = {part: tracker.peak_parts.get(part, 0) for part in PARTS}
    # Only the batch itself grows with the micro batches that were left out.
    more = parts["inputs"] * (job.micro_batches - count) // count
    parts["inputs"] += more
    return RankMemory(rank, tracker.peak + more, parts, {part: tracker.own_peaks[part] for part in PARTS}, count)


def enough_micro_batches(job: Job) -> int:
    """How many reach the peak of all. In its steady state a pipeline repeats one forward and one backward pass, so two
    rounds of it beside warm-up and cool-down are enough; GPipe has no steady state. Without a pipeline there are the
    first micro batch, those that accumulate into its gradients, and the last, which reduces them."""
    layout, count = job.layout, job.micro_batches
    if layout.pp == 1:
        return min(count, 3)
    if layout.schedule == "gpipe":
        return count
    if layout.schedule == "1f1b":
        return min(count, layout.pp + 2)
    rounds = max(1, count // layout.pp)  # which must be equal
    return count // rounds * min(rounds, 4)


@contextmanager
def fake_world(job: Job, rank: int) -> Iterator[World]:
    layout, device = job.layout, torch.device("cpu")
    if layout.devices == 1:
        yield World(layout, device)
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.devices)
    try:
        yield build_world(layout, job.model.tied_embeddings, device, rank)
    finally:
        dist.destroy_process_group()


class TrackedTrainer:
    """A Trainer whose storages are tracked, on fake or on real tensors."""

    def __init__(
        self,
        job: Job,
        world: World,
        weights: Weights,
        tracker: Tracker,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.job, self.world, self.weights, self.tracker = job, world, weights, tracker
        with tracker:
            weights.materialize()
            self.trainer = Trainer(job, world, weights)
            rows = job.layout.micro_batch * job.micro_batches
            self.batch = empty_batch(job, rows)
        if job.cluster.device.is_gpu and job.optimizer == "adam-8bit":
            self._as_compiled(self.trainer.optimizer)
        self._forwards, self._progress = 0, progress
        for module in weights.modules:
            self._track_forward(module)
        fsdp = [part for module in weights.modules for part in module.modules() if isinstance(part, FSDPModule)]
        groups = [part._get_fsdp_state()._fsdp_param_group for part in fsdp]
        self.sharded = [parameter for group in groups if group for parameter in group.fsdp_params]
        self.tracker.label = self.label

    def _as_compiled(self, optimizer: Optimizer) -> None:
        """As torchao's is on a GPU: a step dequantizes the moments of one tensor after the other, and needs no more
        (measured on an H200). The states are created here, untracked: uncompiled that takes more."""
        create_moments(optimizer)

        def step() -> None:
            for master in self.weights.masters:
                dequantized = [torch.empty_like(master.value) for _ in MOMENTS]
                del dequantized

        optimizer.step = step  # type: ignore[method-assign,assignment]

    def step(self) -> None:
        tracker = self.tracker
        with tracker:
            self.label_states()
            tracker.reset()
            self.trainer.step(self.batch)

    def label_states(self) -> None:
        """Between steps. The order matters: fp32 weights are also the master weights."""
        name, optimizer = self.tracker.name, self.trainer.optimizer
        name(self.batch.values(), "inputs")
        name((master.value for master in self.weights.masters), "master")
        if not self.weights.sharded:
            name(self.weights.parameters, "weights")
        name(chain.from_iterable(parameter.all_gather_outputs for parameter in self.sharded), "weights")
        name((state for states in optimizer.state.values() for state in states.values()), "optimizer")

    def label(self) -> None:
        """Gradients accumulate in fp32; those that a backward pass creates in another precision are temporary."""
        gradients = (grad for grad in self._gradients() if grad is not None and grad.dtype == torch.float32)
        self.tracker.name(gradients, "gradients")

    def _gradients(self) -> Iterator[Tensor | None]:
        for master, parameter in zip(self.weights.masters, self.weights.parameters, strict=True):
            yield master.value.grad
            yield parameter.grad
        for gathered in self.sharded:
            yield gathered.unsharded_accumulated_grad
            if hasattr(gathered, "_unsharded_param"):
                yield gathered._unsharded_param.grad

    def _track_forward(self, stage: Any) -> None:
        tracker, total = self.tracker, self.job.micro_batches * len(self.weights.modules) * STEPS

        def begin(_: Any, args: tuple[Tensor, ...]) -> None:
            received = (given for given in args if given.is_floating_point())  # from the stage before
            tracker.name(received, "activations")
            tracker.making = "activations"

        def end(*_: Any) -> None:
            tracker.making = OTHER
            self._forwards += 1
            self._progress(self._forwards / total)

        stage.register_forward_pre_hook(begin)
        stage.register_forward_hook(end)
        compute = stage.loss

        def loss(*args: Any) -> Tensor:
            tracker.making = "logits"
            return compute(*args)

        stage.loss = loss


class FakeTracker(Tracker):
    """Fake tensors have no values, and the few that are read (an optimizer's step count, whether a pipeline's shapes
    are agreed upon) change no sizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


def empty_batch(job: Job, rows: int) -> dict[str, Tensor]:
    """A batch of the right shapes: see engine.loop.batches."""
    shape = (rows, job.model.seq_len)
    names = ["tokens", "targets"]
    names += ["documents", "positions"] if job.data.documents == "apart" else []
    names += ["prefix"] if job.model.objective == "prefix" else []
    parts = {name: torch.zeros(shape, dtype=torch.int64) for name in names}
    return parts | {"token_weights": torch.ones(shape)}
