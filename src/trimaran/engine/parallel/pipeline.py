"""Pipeline parallelism: torch.distributed.pipelining's stages and schedules, with receive buffers only while needed."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from trimaran.engine.metrics.stragglers import LocalClock
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.zero import COMPUTE_DTYPE, Weights
from trimaran.spec import Mistake

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
META = torch.device("meta")
SUPPORTS_ZERO_BUBBLE = Version(torch.__version__).release >= (2, 13)


class LazyRecvBuffers(dict[int, Any]):
    """PyTorch allocates a receive buffer for every micro batch of a step: 30 GB for BLOOM's 128. Here each is a meta
    tensor, except from when its data is about to be received until it was used."""

    def __setitem__(self, micro_batch: int, infos: Any) -> None:
        super().__setitem__(micro_batch, infos)
        self.move(micro_batch, META)

    def move(self, micro_batch: int, device: torch.device) -> None:
        for info in self[micro_batch]:
            buffer = getattr(info, "buffer", None)  # the first stage's tokens have none
            if buffer is not None and buffer.device.type != device.type:
                info.buffer = torch.empty_like(buffer, device=device, requires_grad=buffer.requires_grad)


class LazyBufferStage(PipelineStage):
    args_recv_info: Any
    grad_recv_info: Any

    def __init__(
        self, *args: Any, on_weight_grads: Callable[[], None], clock: LocalClock | None, **kwargs: Any
    ) -> None:
        """`on_weight_grads` is called after the weight half of a split backward pass, which calls no hooks; `clock`
        times what this stage computes."""
        super().__init__(*args, **kwargs)
        self.on_weight_grads = on_weight_grads
        self.timed = clock.device if clock else nullcontext
        self.args_recv_info, self.grad_recv_info = LazyRecvBuffers(), LazyRecvBuffers()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        self.args_recv_info.move(fwd_chunk_id, self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        if not self.is_last:
            self.grad_recv_info.move(bwd_chunk_id, self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.timed():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timed():
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.args_recv_info.move(bwd_chunk_id, META)
        if not self.is_last:
            self.grad_recv_info.move(bwd_chunk_id, META)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timed():
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.on_weight_grads()


class Pipeline:
    """Runs the micro batches of a step through this rank's stages. The schedule is rebuilt when their number changes,
    as it does in a batch-size ramp-up."""

    def __init__(self, weights: Weights, clock: LocalClock | None = None) -> None:
        self.clock = clock
        self.weights, self.job, self.world, self.stages = weights, weights.job, weights.world, weights.stages
        if self.job.layout.schedule == "zero-bubble" and not SUPPORTS_ZERO_BUBBLE:
            raise Mistake(
                f"The zero-bubble schedule needs PyTorch 2.13; {torch.__version__} cannot split the backward pass"
                " of the engine's own operations; the nearest that works: schedule 1f1b."
            )
        self.count = 0
        self.schedule: Any = None

    def run(self, batch: dict[str, Tensor]) -> Tensor:
        """Forward and backward of all micro batches; the sum of their losses where this rank has the last stage."""
        count = len(batch["tokens"]) // self.job.layout.micro_batch
        if count != self.count:
            self.count, self.schedule = count, self._schedule(count)
        first, last = self.stages[0] == 0, self.stages[-1] == self.job.layout.stages - 1
        losses: list[Tensor] = []
        self.schedule.step(
            *((batch["tokens"],) if first else ()),
            **batch,
            **({"target": batch["token_weights"], "losses": losses} if last else {}),
            return_outputs=False,
        )
        return torch.stack(losses).sum() if last else torch.zeros((), device=self.world.device)

    def _schedule(self, count: int) -> Any:
        stages = [self._stage(number, module) for number, module in zip(self.stages, self.weights.modules, strict=True)]
        kind = SCHEDULES[self.job.layout.schedule]
        multi_stage = self.job.layout.schedule in ("interleaved", "zero-bubble")
        return kind(stages if multi_stage else stages[0], count, loss_fn=lambda loss, _: loss, scale_grads=False)

    def _stage(self, number: int, module: Stage) -> LazyBufferStage:
        job, layout = self.job, self.job.layout
        rows, seq = layout.micro_batch, job.model.seq_len
        tokens = rows * seq // (layout.tp if self.world.tensor_axis.sequence_parallel else 1)
        activation = torch.empty(
            tokens, job.model.hidden, dtype=COMPUTE_DTYPE[job.precision], device="meta", requires_grad=True
        )
        stage_input = torch.empty(rows, seq, dtype=torch.int64, device="meta") if number == 0 else activation
        last = number == layout.stages - 1
        loss = torch.empty((), device="meta", requires_grad=True)
        return LazyBufferStage(
            module,
            number,
            layout.stages,
            self.world.device,
            input_args=(stage_input,),
            output_args=(loss if last else activation,),
            group=self.world.group("pp"),
            on_weight_grads=self.weights.collect_gradients,
            clock=self.clock,
        )
