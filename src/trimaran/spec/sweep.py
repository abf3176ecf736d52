"""Sweep: variants of one Job, how each is measured and where it runs."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import Devices, Quantity, QuantityOrZero, Steps
from trimaran.spec.job import Job
from trimaran.spec.mistake import shortened

MOST_NAME_BYTES = 200  # file systems allow 255; what is named after a sweep adds to it


class MeasureSettings(Spec):
    """When a trial ends: its median is stable, or a limit is reached."""

    iterations: Steps = Field(30, description="Most iterations measured, after the warm-up.")
    least: Steps = Field(8, description="Fewest iterations measured.")
    tolerance: QuantityOrZero = Field(
        0.02, description="The median is stable when the first and second half of the iterations agree to this share."
    )
    minutes: Quantity = Field(10.0, description="Time limit of a trial.")
    silence_minutes: Quantity = Field(5.0, description="A rank without a first step counts as hung after this.")
    silence_times: Quantity = Field(
        20.0, description="A rank that is stepping counts as hung after this many of the trial's own iterations,"
    )
    silence_seconds: Quantity = Field(30.0, description="but not before this many seconds.")


class LaunchSettings(Spec):
    """Where trials run."""

    kind: Literal["local", "slurm", "allocation"] = Field(
        "local", description="This machine; a SLURM job per trial; or srun steps inside the current allocation."
    )
    parallel: Devices = Field(1, description="Most trials at the same time.")
    memory_gib: Quantity | None = Field(None, description="local: memory limit of each process.")
    pin: bool = Field(False, description="local: concurrent trials are pinned to different cores.")
    options: tuple[str, ...] = Field((), description="slurm: sbatch options, such as --partition=gpu.")
    prepare: str = Field("", description="slurm: shell lines before the trainer, such as `module load cuda`.")


class Sweep(Spec):
    name: str
    base: Job
    axes: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict, description="Field of the Job -> its values; every combination is a trial."
    )
    alternatives: tuple[dict[str, Any], ...] = Field(
        (), description="Sets of fields changed together; each is combined with every combination of the axes."
    )
    devices: Devices | None = Field(None, description="Devices of every layout: dp follows from tp and pp.")
    command: str | None = Field(
        None, description="Another trainer: a shell command with placeholders {tp} {pp} {dp} {mbs} {gbs} {port} {job} …"
    )
    place: LaunchSettings = LaunchSettings()
    measuring: MeasureSettings = MeasureSettings()

    @model_validator(mode="after")
    def _check_axes(self) -> Self:
        for field, values in self.axes.items():
            if not values:
                raise ValueError(f"the axis {field} has no values; give some, or omit it.")
        if not self.name or "/" in self.name or self.name.startswith(".") or not self.name.isprintable():
            raise ValueError(f"the name {shortened(self.name)} is not a valid folder name.")
        if len(self.name.encode()) > MOST_NAME_BYTES:
            raise ValueError(
                f"the name {shortened(self.name)} has {len(self.name.encode())} bytes; it names a folder and its"
                f" trials, so {MOST_NAME_BYTES} are allowed."
            )
        return self
