"""The pipeline: torch.distributed.pipelining's stages and schedules, with receive buffers only while needed."""

from collections.abc import Callable
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

from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.zero import COMPUTE_DTYPE, Weights
from trimaran.spec import Mistake

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
ZERO_BUBBLE_WORKS = Version(torch.__version__).release >= (2, 13)


class BufferOnDemand(dict[int, Any]):
    """PyTorch allocates a receive buffer for every micro batch of a step: 30 GB for BLOOM's 128. Here each is put aside
    as a shape, and `provide` makes it when its data is about to come."""

    def __setitem__(self, micro_batch: int, infos: Any) -> None:
        super().__setitem__(micro_batch, infos)
        self.release(micro_batch)

    def provide(self, micro_batch: int, device: torch.device) -> None:
        self._place(micro_batch, device)

    def release(self, micro_batch: int) -> None:
        self._place(micro_batch, torch.device("meta"))

    def _place(self, micro_batch: int, device: torch.device) -> None:
        for info in self[micro_batch]:
            buffer = getattr(info, "buffer", None)  # the first stage's tokens have none
            if buffer is not None and buffer.device.type != device.type:
                info.buffer = torch.empty_like(buffer, device=device, requires_grad=buffer.requires_grad)


class LeanStage(PipelineStage):
    args_recv_info: Any
    grad_recv_info: Any

    def __init__(self, *args: Any, after_weights: Callable[[], None], **kwargs: Any) -> None:
        """`after_weights` is called when a zero-bubble schedule has written gradients, which calls no hook."""
        super().__init__(*args, **kwargs)
        self.after_weights = after_weights
        self.args_recv_info, self.grad_recv_info = BufferOnDemand(), BufferOnDemand()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        self.args_recv_info.provide(fwd_chunk_id, self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        if not self.is_last:
            self.grad_recv_info.provide(bwd_chunk_id, self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.args_recv_info.release(bwd_chunk_id)
        if not self.is_last:
            self.grad_recv_info.release(bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.after_weights()


class Pipeline:
    """Runs the micro batches of a step through this rank's stages. The schedule is made anew when their number changes,
    as it does in a batch-size ramp-up."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.job, self.world, self.stages = weights, weights.job, weights.world, weights.stages
        if self.job.layout.schedule == "zero-bubble" and not ZERO_BUBBLE_WORKS:
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
        several = self.job.layout.schedule in ("interleaved", "zero-bubble")
        return kind(stages if several else stages[0], count, loss_fn=lambda loss, _: loss, scale_grads=False)

    def _stage(self, number: int, module: Stage) -> LeanStage:
        job, layout = self.job, self.job.layout
        rows, seq = layout.micro_batch, job.model.seq_len
        tokens = rows * seq // (layout.tp if self.world.tensor_axis.cuts_tokens else 1)
        between = torch.empty(
            tokens, job.model.hidden, dtype=COMPUTE_DTYPE[job.precision], device="meta", requires_grad=True
        )
        given = torch.empty(rows, seq, dtype=torch.int64, device="meta") if number == 0 else between
        last = number == layout.stages - 1
        loss = torch.empty((), device="meta", requires_grad=True)
        return LeanStage(
            module,
            number,
            layout.stages,
            self.world.device,
            input_args=(given,),
            output_args=(loss if last else between,),
            group=self.world.group("pp"),
            after_weights=self.weights.collect,
        )
