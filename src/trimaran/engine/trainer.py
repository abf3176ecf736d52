"""Trainer: one rank of a Job, ready to step. The order in which PyTorch's parts are applied, from top to bottom."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.gradients import clip, complete, norm_and_sums
from trimaran.engine.pipeline import Pipeline
from trimaran.engine.weights import Slot, Weights, weights
from trimaran.engine.world import World
from trimaran.spec import Job


@dataclass(frozen=True)
class Step:
    """What a step tells: on the device, so that asking is what waits for it."""

    loss: Tensor
    grad_norm: Tensor
    stop: Tensor  # above zero: some rank was asked to stop, and all know it now


class Trainer:
    def __init__(self, job: Job, world: World, held: Weights | None = None) -> None:
        """`held`: weights whose memory is taken already; else they are made here, with their first values."""
        self.job, self.world = job, world
        self.weights = weights(job, world) if held is None else held
        if held is None:
            self.weights.materialise()
            self.weights.initialise()
        self.pipeline = Pipeline(self.weights) if job.layout.pp > 1 else None
        self.optimizer = optimizer(job, self.weights.slots)

    def step(self, batch: dict[str, Tensor], stop: bool = False) -> Step:
        """`batch` is this replica's share of the global batch."""
        batch = batch | {"token_weights": self.shared_out(batch["token_weights"])}
        self.weights.clear()
        loss = self.pipeline.run(batch) if self.pipeline else self.accumulate(batch)
        self.weights.reduce()
        complete(self.weights.slots, self.world)
        # Tensor ranks of the last stage have the same loss, the others none.
        sums = [loss / self.job.layout.tp, torch.full_like(loss, float(stop))]
        norm, loss, stops = norm_and_sums(self.weights.slots, sums, self.world)
        if self.job.recipe.clip is not None:
            clip(self.weights.slots, norm, self.job.recipe.clip)
        self.optimizer.step()
        self.weights.publish()
        return Step(loss, norm, stops)

    def shared_out(self, token_weights: Tensor) -> Tensor:
        """Each token's part of the mean over all tokens that count, in the whole batch."""
        counted = token_weights.sum()
        if self.job.layout.dp > 1:
            dist.all_reduce(counted, group=self.world.group("dp"))
        return token_weights / counted

    def accumulate(self, batch: dict[str, Tensor]) -> Tensor:
        """Forward and backward of each micro batch in turn, without a pipeline."""
        (model,) = self.weights.modules
        splits = [tensor.split(self.job.layout.micro_batch) for tensor in batch.values()]
        micro_batches = [dict(zip(batch, parts, strict=True)) for parts in zip(*splits, strict=True)]
        loss = torch.zeros((), device=self.world.device)
        for i, micro_batch in enumerate(micro_batches):
            self.weights.before(i, len(micro_batches))
            part = model(micro_batch["tokens"], **micro_batch)
            part.backward()
            loss += part.detach()
        return loss


def optimizer(job: Job, slots: list[Slot]) -> torch.optim.Optimizer:
    recipe = job.recipe
    return torch.optim.AdamW(
        [slot.value for slot in slots],
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        fused=job.optimizer == "fused-adam",
    )
