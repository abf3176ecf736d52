"""Validation loss: always of the same samples, and the same on every layout."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from trimaran.data.source import SampleSource
from trimaran.engine.loop.batches import batch, micro_batches
from trimaran.engine.trainer import Trainer


def evaluate(trainer: Trainer, source: SampleSource) -> float:
    """The mean loss of the job's validation samples, on all ranks."""
    world = trainer.world
    loss = torch.zeros((), dtype=torch.float64, device=world.device)
    with torch.no_grad():
        for micro_batch in micro_batches(validation_batch(trainer, source), trainer.job.layout.micro_batch):
            loss += forward(trainer, micro_batch)
    for module in trainer.weights.modules:
        if isinstance(module, FSDPModule):
            module.reshard()  # as a backward pass would
    if world.mesh is not None:
        dist.all_reduce(loss)
    return float(loss) / world.layout.tp  # every tensor rank of the last stage has added it


def validation_batch(trainer: Trainer, source: SampleSource) -> dict[str, Tensor]:
    """This replica's share. Samples that only pad the last micro batches have weight zero."""
    job, world = trainer.job, trainer.world
    samples, unit = job.validation.samples, job.layout.dp * job.layout.micro_batch
    size = -(-samples // unit) * unit
    parts = batch(job, source, 0, size, world.dp_rank, world.device)
    rows = size // job.layout.dp
    first = world.dp_rank * rows
    weights = parts["token_weights"].clone()
    weights[max(0, samples - first) :] = 0.0
    return parts | {"token_weights": trainer.normalize_token_weights(weights)}


def forward(trainer: Trainer, micro_batch: dict[str, Tensor]) -> Tensor:
    """Through this rank's stages in the model's order; the loss on the ranks of the last stage, zero on the others."""
    weights, layout = trainer.weights, trainer.job.layout
    x = micro_batch["tokens"]
    for stage, module in zip(weights.stages, weights.modules, strict=True):
        if stage > 0:
            x = receive(trainer, (stage - 1) % layout.pp)
        x = module(x, **micro_batch)
        if stage < layout.stages - 1:
            dist.send(x, group=trainer.world.group("pp"), group_dst=(stage + 1) % layout.pp)
    return x if weights.stages[-1] == layout.stages - 1 else torch.zeros((), device=x.device)


def receive(trainer: Trainer, rank: int) -> Tensor:
    job, axis = trainer.job, trainer.world.tensor_axis
    tokens = job.layout.micro_batch * job.model.seq_len // (axis.size if axis.sequence_parallel else 1)
    x = torch.empty(tokens, job.model.hidden, dtype=trainer.weights.dtype, device=trainer.world.device)
    dist.recv(x, group=trainer.world.group("pp"), group_src=rank)
    return x
