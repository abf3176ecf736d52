"""Trainer: one rank of a Job, ready to step. The order in which PyTorch's parts are applied, from top to bottom."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.kernels.compile import can_compile, compile_layers
from trimaran.engine.kernels.fused_adamw import FusedAdamW
from trimaran.engine.loop.batches import micro_batches
from trimaran.engine.optimizer.adam import build_optimizer, optimizer_step, set_learning_rate
from trimaran.engine.optimizer.gradients import clip_, clip_factor, finalize_gradients, grad_norm_and_sums
from trimaran.engine.optimizer.loss_scale import LossScaler
from trimaran.engine.parallel.pipeline import Pipeline
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import Weights, build_weights
from trimaran.spec import Job


@dataclass(frozen=True)
class Step:
    """What a step tells: on the device, so that asking is what waits for it."""

    loss: Tensor
    grad_norm: Tensor
    stop: Tensor  # above zero: some rank was asked to, and now all know it
    save: Tensor
    loss_scale: float
    skipped: bool  # loss or gradients are not finite, and nothing was moved

    def totals(self) -> Tensor:
        """All of them, on their way to the host; nothing waits."""
        return torch.stack([self.loss, self.grad_norm, self.stop, self.save]).to("cpu", non_blocking=True)


class Asks(NamedTuple):
    """What this rank was asked to do after the step; all ranks learn of it with the loss."""

    stop: bool = False
    save: bool = False


NOTHING = Asks()


class Trainer:
    def __init__(self, job: Job, world: World, held: Weights | None = None, guarded: bool = False) -> None:
        """`held`: weights whose memory is taken already; else they are made here, with their first values.
        `guarded`: a step whose loss or gradients are not finite moves nothing, as is always so in fp16."""
        self.job, self.world = job, world
        self.weights = build_weights(job, world) if held is None else held
        if held is None:
            self.weights.materialize()
            self.weights.init_weights()
        if can_compile(world):
            for module in self.weights.modules:
                compile_layers(module)
        self.pipeline = Pipeline(self.weights) if job.layout.pp > 1 else None
        self.optimizer = build_optimizer(job, self.weights.masters, world)
        self.scaler = LossScaler(job.recipe.loss_scale if job.precision == "fp16" else None)
        self.guarded = guarded or self.scaler.is_dynamic

    def step(self, batch: dict[str, Tensor], rate: float | None = None, asks: Asks = NOTHING) -> Step:
        """`batch` is this replica's share of the global batch; `rate` the learning rate, the recipe's unless given."""
        scale = self.scaler.scale
        batch = batch | {"token_weights": self.shared_out(batch["token_weights"]) * scale}
        self.weights.zero_grad()
        loss = self.pipeline.run(batch) if self.pipeline else self.accumulate(batch)
        self.weights.reduce_gradients()
        finalize_gradients(self.weights.masters, self.world)
        # Tensor ranks of the last stage have the same loss, the others none.
        sums = [loss / (self.job.layout.tp * scale), *(torch.full_like(loss, float(ask)) for ask in asks)]
        norm, loss, stop, save = grad_norm_and_sums(self.weights.masters, sums, self.world)
        norm = norm / scale
        # Asking the device whether all is finite makes the host wait for it.
        finite = not self.guarded or bool((norm + loss).isfinite())
        if finite:
            set_learning_rate(self.optimizer, self.job.recipe.learning_rate if rate is None else rate)
            self.move(clip_factor(norm, scale, self.job.recipe.clip))
        self.scaler.update(finite)
        return Step(loss, norm, stop, save, scale, skipped=not finite)

    def move(self, factor: Tensor) -> None:
        """The weights, along the gradients times this factor."""
        if isinstance(self.optimizer, FusedAdamW):
            self.optimizer.grad_factor = factor
            self.optimizer.step()
            return
        clip_(self.weights.masters, factor)
        optimizer_step(self.optimizer)
        self.weights.sync_compute_weights()

    def shared_out(self, token_weights: Tensor) -> Tensor:
        """Each token's part of the mean over all tokens that count, in the whole batch."""
        total = token_weights.sum()
        if self.job.layout.dp > 1:
            dist.all_reduce(total, group=self.world.group("dp"))
        return token_weights / total

    def accumulate(self, batch: dict[str, Tensor]) -> Tensor:
        """Forward and backward of each micro batch in turn, without a pipeline."""
        (model,) = self.weights.modules
        parts = micro_batches(batch, self.job.layout.micro_batch)
        loss = torch.zeros((), device=self.world.device)
        for i, micro_batch in enumerate(parts):
            self.weights.before_micro_batch(i, len(parts))
            part = model(micro_batch["tokens"], **micro_batch)
            part.backward()
            loss += part.detach()
        return loss
