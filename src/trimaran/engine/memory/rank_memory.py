"""The exact memory of one rank: its Trainer, whole steps of it, on fake tensors and in a process group of one that
pretends to be all. Nothing is computed and nothing allocated, so any rank of any layout fits a laptop."""

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

from trimaran.cost.states import LEAST_8BIT
from trimaran.engine.memory.tracker import OTHER, Tracker
from trimaran.engine.optimizer.adam import MOMENTS, adamw_8bit, create_moments
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.parallel.zero import Weights, build_weights
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job

PARTS = ("weights", "master", "gradients", "optimizer", "activations", "logits", "working", "inputs", "other")
STEPS = 2  # the first makes the optimizer's states, the second is like all that follow


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank in a step that is not the first."""

    rank: int
    peak: int
    parts: dict[str, int]  # at the moment of the peak, by the names in PARTS
    own_peaks: dict[str, int]  # of each part by itself, whenever that was
    micro_batches: int  # that were run: more would repeat what these showed


def rank_memory(job: Job, rank: int, progress: Callable[[float], None] = lambda share: None) -> RankMemory:
    """Of the steady state."""
    count = enough_micro_batches(job)
    shortened = job.model_copy(
        update={"batch": job.batch.replace(size=count * job.layout.dp * job.layout.micro_batch, ramp=None)}
    )
    if job.optimizer == "adam-8bit":
        make_tables()
    with pretended_world(shortened, rank) as world:
        held = build_weights(shortened, world)
        with FakeTensorMode(allow_non_fake_inputs=True):
            measured = Measured(shortened, world, held, Unvalued(), progress)
            for _ in range(STEPS):
                measured.step()
            tracker = measured.tracker
    parts = {part: tracker.peak_parts.get(part, 0) for part in PARTS}
    # Of all that is held only the batch itself grows with the micro batches left out.
    more = parts["inputs"] * (job.micro_batches - count) // count
    parts["inputs"] += more
    return RankMemory(rank, tracker.peak + more, parts, {part: tracker.own_peaks[part] for part in PARTS}, count)


def make_tables() -> None:
    """torchao keeps the values of its 8-bit numbers for as long as the process lives. Fake tensors have none to give:
    a real one is packed first."""
    create_moments(adamw_8bit([nn.Parameter(torch.zeros(LEAST_8BIT))]))


def enough_micro_batches(job: Job) -> int:
    """Of a step that shows the peak of the whole one. Once a pipeline is full it repeats one forward and one backward
    pass, so two rounds of it beside filling and draining are enough; GPipe never fills. Without a pipeline there are
    the first micro batch, those that add to its gradients, and the last, which reduces them."""
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
def pretended_world(job: Job, rank: int) -> Iterator[World]:
    layout, device = job.layout, torch.device("cpu")
    if layout.devices == 1:
        yield World(layout, device)
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.devices)
    try:
        yield build_world(layout, job.model.tied_embeddings, device, rank)
    finally:
        dist.destroy_process_group()


class Measured:
    """A Trainer under the eyes of a Tracker, on fake or on real tensors."""

    def __init__(
        self,
        job: Job,
        world: World,
        held: Weights,
        tracker: Tracker,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.job, self.world, self.held, self.tracker = job, world, held, tracker
        with tracker:
            held.materialize()
            self.trainer = Trainer(job, world, held)
            rows = job.layout.micro_batch * job.micro_batches
            self.batch = zeros(job, rows)
        if job.cluster.device.is_gpu and job.optimizer == "adam-8bit":
            self._as_compiled(self.trainer.optimizer)
        self._forwards, self._progress = 0, progress
        for module in held.modules:
            self._watch(module)
        fsdp = [part for module in held.modules for part in module.modules() if isinstance(part, FSDPModule)]
        groups = [part._get_fsdp_state()._fsdp_param_group for part in fsdp]
        self.sharded = [parameter for group in groups if group for parameter in group.fsdp_params]
        self.tracker.label = self.label

    def _as_compiled(self, optimizer: Optimizer) -> None:
        """As torchao's is on a GPU: a step unpacks the moments of one tensor after the other, and needs no more beside
        them (weighed on an H200). The states are made here, unseen: uncompiled that takes more."""
        create_moments(optimizer)

        def step() -> None:
            for master in self.held.masters:
                unpacked = [torch.empty_like(master.value) for _ in MOMENTS]
                del unpacked

        optimizer.step = step  # type: ignore[method-assign,assignment]

    def step(self) -> None:
        tracker = self.tracker
        with tracker:
            self.label_states()
            tracker.reset()
            self.trainer.step(self.batch)

    def label_states(self) -> None:
        """Between steps. The order matters: fp32 weights are the optimizer's values too."""
        name, optimizer = self.tracker.name, self.trainer.optimizer
        name(self.batch.values(), "inputs")
        name((master.value for master in self.held.masters), "master")
        if not self.held.sharded:
            name(self.held.parameters, "weights")
        name(chain.from_iterable(parameter.all_gather_outputs for parameter in self.sharded), "weights")
        name((state for states in optimizer.state.values() for state in states.values()), "optimizer")

    def label(self) -> None:
        """Gradients add up in fp32; what a backward pass makes in another precision lives for a moment."""
        found = (grad for grad in self._gradients() if grad is not None and grad.dtype == torch.float32)
        self.tracker.name(found, "gradients")

    def _gradients(self) -> Iterator[Tensor | None]:
        for master, parameter in zip(self.held.masters, self.held.parameters, strict=True):
            yield master.value.grad
            yield parameter.grad
        for gathered in self.sharded:
            yield gathered.unsharded_accumulated_grad
            if hasattr(gathered, "_unsharded_param"):
                yield gathered._unsharded_param.grad

    def _watch(self, stage: Any) -> None:
        tracker, whole = self.tracker, self.job.micro_batches * len(self.held.modules) * STEPS

        def begin(_: Any, args: tuple[Tensor, ...]) -> None:
            tracker.name((given for given in args if given.is_floating_point()), "activations")  # what was received
            tracker.making = "activations"

        def end(*_: Any) -> None:
            tracker.making = OTHER
            self._forwards += 1
            self._progress(self._forwards / whole)

        stage.register_forward_pre_hook(begin)
        stage.register_forward_hook(end)
        compute = stage.loss

        def loss(*args: Any) -> Tensor:
            tracker.making = "logits"
            return compute(*args)

        stage.loss = loss


class Unvalued(Tracker):
    """Fake tensors have no values, and the few that are asked for (how many steps an optimizer made, whether a
    pipeline's shapes are agreed upon) change no sizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


def zeros(job: Job, rows: int) -> dict[str, Tensor]:
    """A batch of the right shapes: see engine.loop.batches."""
    shape = (rows, job.model.seq_len)
    whole = ["tokens", "targets"]
    whole += ["documents", "positions"] if job.data.documents == "apart" else []
    whole += ["prefix"] if job.model.objective == "prefix" else []
    parts = {name: torch.zeros(shape, dtype=torch.int64) for name in whole}
    return parts | {"token_weights": torch.ones(shape)}
