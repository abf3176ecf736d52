"""Checkpoints with weights that leave nothing at zero or one, for tests that take them elsewhere."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.stages import random_weights
from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.folder import TrainState
from trimaran.engine.loop.batches import batch
from trimaran.engine.model.transformer import Stage
from trimaran.engine.optimizer.adam import create_moments
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job, Layout

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": GPT | {"ffn_hidden": 80},
    "gpt2, untied": GPT | {"tied_embeddings": False},
    "bloom, 6 heads": BLOOM | {"hidden": 48, "heads": 6},
    "llama, grouped, untied": LLAMA | {"kv_heads": 2, "rotary_base": 5e5, "tied_embeddings": False},
    "llama, tied": LLAMA,
}
CPU = torch.device("cpu")


def random_checkpoint(model: dict[str, Any], folder: Path, **rest: Any) -> Job:
    """As one process saves it, after no step."""
    job = job_of(model, {}, saving={"folder": str(folder)}, **rest)
    trainer = Trainer(job, World(job.layout, CPU))
    (module,) = trainer.weights.modules
    module.load_state_dict(random_weights(module))
    create_moments(trainer.optimizer)
    Checkpointer(trainer).save(TrainState())
    return job


def save_after_a_step(rank: int, job: Job) -> None:
    world = build_world(job.layout, job.model.tied_embeddings, CPU, rank)
    trainer = Trainer(job, world)
    trainer.step(batch(job, source_of(job), 0, job.batch.size, world.dp_rank, CPU))
    Checkpointer(trainer).save(TrainState(1, job.batch.size))


def resumed(job: Job) -> tuple[Trainer, TrainState]:
    """One process that has read the newest checkpoint as training does."""
    trainer = Trainer(job, World(Layout(), CPU))
    return trainer, Checkpointer(trainer).resume()


def logits_of(stage: Stage, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return stage.logits(stage.activations(tokens, tokens)).unflatten(0, tokens.shape)
