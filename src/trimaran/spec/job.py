"""Job: everything needed to plan, run, export or compare one training run. A Job that exists is valid."""

from pathlib import Path
from typing import Self

from pydantic import Field, ValidationInfo, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.batch import Batch
from trimaran.spec.bounds import BatchSize, Quantity, Seed, Steps
from trimaran.spec.cluster import Cluster, Precision
from trimaran.spec.data import Data
from trimaran.spec.layout import Layout, stage_layers
from trimaran.spec.model import Model
from trimaran.spec.recipe import Recipe
from trimaran.spec.trainer import Optimizer, TrainerProfile

WARM_UP_ITERATIONS = 2  # of a run, on our trainer: the first allocates, compiles, connects; the second still settles


class Saving(Spec):
    """Checkpoints. One is also written when the run ends or is stopped; a run resumes from the newest complete one."""

    folder: str | None = Field(None, description="Where checkpoints are written; None: nowhere.")
    every: Steps | None = Field(None, description="Iterations between checkpoints.")
    minutes: Quantity | None = Field(None, description="Minutes between checkpoints.")
    keep: Steps = Field(2, description="How many of the newest are kept.")
    asynchronous: bool = Field(False, description="Keep training during a write; needs a copy in host memory.")


class Validation(Spec):
    """Loss on the held-out documents."""

    every: Steps | None = Field(None, description="Iterations between evaluations; None: never.")
    samples: BatchSize = Field(64, description="Samples of an evaluation, always the same ones.")


class Job(Spec):
    name: str = "unnamed"
    model: Model
    cluster: Cluster
    trainer: TrainerProfile
    layout: Layout = Layout()
    batch: Batch
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    recipe: Recipe = Recipe()
    data: Data = Data()
    saving: Saving = Saving()
    validation: Validation = Validation()
    steps: Steps = 10
    seed: Seed = 1234
    environment: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> Self:
        from trimaran.spec.nearest import suggest_change  # both import Job for its type
        from trimaran.spec.rules import problems

        trusted = bool(info.context and info.context.get("trusted"))
        violations = [] if trusted else problems(self)
        if violations:
            raise ValueError(f"{violations[0]}{suggest_change(self)}")
        return self

    @property
    def micro_batches(self) -> int:
        """Micro batches per replica in one full step."""
        return self.batch.size // (self.layout.dp * self.layout.micro_batch)

    @property
    def samples(self) -> int:
        """Samples consumed by all steps, those of the ramp-up included."""
        consumed, left = 0, self.steps
        for size, count in self.batch.ramp_steps():
            count = min(count, left)
            consumed, left = consumed + count * size, left - count
        return consumed + left * self.batch.size

    @property
    def stage_layers(self) -> tuple[int, ...]:
        layers = stage_layers(self.model.layers, self.layout)
        assert layers is not None  # problems() refused such a Job
        return layers

    def save(self, path: str | Path) -> None:
        """Write the whole Job as YAML, or as JSON if the name ends so; `trimaran.load` reads it back equal.

        >>> job.save("job.yaml")
        """
        from trimaran.spec.files import save  # it reads Jobs

        save(self, Path(path))

    def warnings(self) -> list[str]:
        from trimaran.spec.rules import warnings

        return warnings(self)
