"""Trainer: one rank of a Job, ready to step. The order in which PyTorch's parts are applied, from top to bottom."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.kernels.compile import can_compile, compile_layers
from trimaran.engine.kernels.fused_adamw import FusedAdamW
from trimaran.engine.loop.batches import micro_batches, on_device
from trimaran.engine.metrics.stragglers import LocalClock
from trimaran.engine.optimizer.adam import build_optimizer, optimizer_step, set_learning_rate
from trimaran.engine.optimizer.gradients import clip_, clip_factor, finalize_gradients, grad_norm_and_sums
from trimaran.engine.optimizer.loss_scale import LossScaler
from trimaran.engine.parallel.pipeline import Pipeline
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import Weights, build_weights
from trimaran.spec import Job


@dataclass(frozen=True)
class StepResult:
    """Tensors on the device: whoever reads them waits for the step."""

    loss: Tensor
    grad_norm: Tensor
    stop: Tensor  # above zero: some rank requests it, and now all know
    save: Tensor
    local_seconds: Tensor  # of every rank, in the last step that its clock knows
    loss_scale: float
    skipped: bool  # loss or gradients are not finite, and no weights were updated

    def totals(self) -> Tensor:
        """All of them, copied to the host without waiting."""
        scalars = torch.stack([self.loss, self.grad_norm, self.stop, self.save])
        return torch.cat([scalars, self.local_seconds]).to("cpu", non_blocking=True)


class Requests(NamedTuple):
    """What this rank requests after the step; all ranks learn of it with the loss."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


class Trainer:
    def __init__(self, job: Job, world: World, built: Weights | None = None, skip_not_finite: bool = False) -> None:
        """`built`: weights that are allocated already; otherwise they are allocated and initialised here.
        `skip_not_finite`: a step whose loss or gradients are not finite updates no weights, as always in fp16."""
        self.job, self.world = job, world
        # The stages of this rank, cut for tensor parallelism and sharded for ZeRO; compiled; put into the pipeline.
        self.weights = build_weights(job, world) if built is None else built
        if built is None:
            self.weights.materialize()
            self.weights.init_weights()
        if can_compile(world):
            for module in self.weights.modules:
                compile_layers(module)
        self.clock = LocalClock(world.device)
        # Whether forward and backward passes wait for no other rank.
        self.computes_alone = job.layout.tp == 1 and not self.weights.sharded
        clock = self.clock if self.computes_alone else None
        self.pipeline = Pipeline(self.weights, clock) if job.layout.pp > 1 else None
        self.optimizer = build_optimizer(job, self.weights.masters, world)
        self.scaler = LossScaler(job.recipe.loss_scale if job.precision == "fp16" else None)
        self.skip_not_finite = skip_not_finite or self.scaler.is_dynamic

    def step(self, batch: dict[str, Tensor], rate: float | None = None, requests: Requests = NO_REQUESTS) -> StepResult:
        """`batch` is this replica's share of the global batch; `rate` the learning rate, the recipe's unless given."""
        scale = self.scaler.scale
        batch = batch | {"token_weights": self.normalize_token_weights(batch["token_weights"]) * scale}
        self.weights.zero_grad()
        loss = self.pipeline.run(batch) if self.pipeline else self.accumulate(batch)
        self.weights.reduce_gradients()
        finalize_gradients(self.weights.masters, self.world)
        norm, sums = grad_norm_and_sums(self.weights.masters, self.values_to_sum(loss / scale, requests), self.world)
        (loss, stop, save), local_seconds = sums[:3], sums[3:]
        norm = norm / scale
        # Reading whether all is finite makes the host wait for the device.
        finite = not self.skip_not_finite or bool((norm + loss).isfinite())
        if finite:
            set_learning_rate(self.optimizer, self.job.recipe.learning_rate if rate is None else rate)
            with self.clock.device():
                self.update_weights(clip_factor(norm, scale, self.job.recipe.clip))
        self.scaler.update(finite)
        self.clock.end_step()
        return StepResult(loss, norm, stop, save, local_seconds, scale, skipped=not finite)

    def values_to_sum(self, loss: Tensor, requests: Requests) -> Tensor:
        """Over all ranks: the loss, requests, and a place for the seconds of each rank."""
        values = torch.zeros(3 + self.world.size, dtype=torch.float64)
        values[1], values[2], values[3 + self.world.rank] = requests.stop, requests.save, self.clock.seconds()
        values = on_device(values, self.world.device)
        values[0] = loss / self.job.layout.tp  # tensor ranks of the last stage have the same, ranks of others zero
        return values

    def update_weights(self, factor: Tensor) -> None:
        """One optimizer step with the gradients times this factor."""
        if isinstance(self.optimizer, FusedAdamW):
            self.optimizer.grad_factor = factor
            self.optimizer.step()
            return
        clip_(self.weights.masters, factor)
        optimizer_step(self.optimizer)
        self.weights.sync_compute_weights()

    def normalize_token_weights(self, token_weights: Tensor) -> Tensor:
        """So that the weighted sum of losses over the whole batch is the mean over the tokens that count."""
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
            with self.clock.device() if self.computes_alone else nullcontext():
                part = model(micro_batch["tokens"], **micro_batch)
                part.backward()
            loss += part.detach()
        return loss
