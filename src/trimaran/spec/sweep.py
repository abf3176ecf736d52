"""Sweep: many Jobs made of one by changing some fields, and how each is measured and where it runs."""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.job import Job


class MeasureSettings(Spec):
    """How long a trial goes on: until its median is stable, or its limit comes."""

    iterations: PositiveInt = Field(30, description="The most that are measured, warm-up not counted.")
    least: PositiveInt = Field(8, description="The fewest.")
    tolerance: NonNegativeFloat = Field(
        0.02, description="The median is stable when the older and the newer half of the iterations agree so well."
    )
    minutes: PositiveFloat = Field(10.0, description="The limit of a trial.")
    silence_minutes: PositiveFloat = Field(5.0, description="A rank that has not begun to step hangs after so long.")
    silence_times: PositiveFloat = Field(
        20.0, description="A rank that steps hangs after so many of the trial's own iterations,"
    )
    silence_seconds: PositiveFloat = Field(30.0, description="but not before so many seconds.")


class LaunchSettings(Spec):
    """Where trials run."""

    kind: Literal["local", "slurm", "allocation"] = Field(
        "local", description="This machine; a SLURM job for each; or steps on the nodes of an allocation we are in."
    )
    parallel: PositiveInt = Field(1, description="Trials side by side at most.")
    memory_gib: PositiveFloat | None = Field(None, description="local: the most that each process may take.")
    pin: bool = Field(False, description="local: trials that run side by side get different cores.")
    options: tuple[str, ...] = Field((), description="slurm: options of sbatch, such as --partition=gpu.")
    prepare: str = Field("", description="slurm: shell lines before the trainer, such as `module load cuda`.")


class Sweep(Spec):
    name: str
    base: Job
    axes: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict, description="Field of the Job -> its values; every combination is a trial."
    )
    alternatives: tuple[dict[str, Any], ...] = Field(
        (), description="Sets of fields that go together; each is combined with every combination of the axes."
    )
    devices: PositiveInt | None = Field(None, description="Every layout uses so many: dp follows from tp and pp.")
    command: str | None = Field(
        None, description="Another trainer: a shell line with {tp} {pp} {dp} {mbs} {gbs} {port} {job} … in it."
    )
    place: LaunchSettings = LaunchSettings()
    measuring: MeasureSettings = MeasureSettings()

    @model_validator(mode="after")
    def _varies(self) -> Self:
        for field, values in self.axes.items():
            if not values:
                raise ValueError(f"the axis {field} has no values; give some, or leave it out.")
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"the name {self.name!r} cannot be that of a folder.")
        return self
