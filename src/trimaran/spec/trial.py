"""Outcome and Trial: what a run of a Job measured, and where the measurement comes from."""

from typing import Any, Literal

from pydantic import Field, PositiveInt

from trimaran.spec.base import Spec
from trimaran.spec.bounds import Quantity, QuantityOrZero, StepsOrZero
from trimaran.spec.job import Job
from trimaran.spec.setup import Setup

Status = Literal["pending", "running", "ok", "oom", "hang", "fail", "timeout", "cancelled", "lost"]


class Outcome(Spec):
    status: Status
    reason: str = Field("", description="Why it failed, or a remark ('may hang').")
    seconds: Quantity | None = Field(None, description="Seconds per iteration: median of the measured ones.")
    seconds_low: Quantity | None = Field(None, description="First quartile of the measured iterations.")
    seconds_high: Quantity | None = Field(None, description="Third quartile.")
    iterations: StepsOrZero | None = Field(None, description="Iterations measured, without the warm-up.")
    warmup: StepsOrZero | None = Field(None, description="Iterations discarded at the start.")
    memory_gib: QuantityOrZero | None = Field(None, description="Peak of the device that uses most.")
    memory_by_stage_gib: tuple[QuantityOrZero, ...] = ()
    tokens_per_second: QuantityOrZero | None = Field(None, description="Of the whole job, not per device.")
    tflops: QuantityOrZero | None = Field(None, description="Per device, as printed by the source.")
    tflops_formula: str | None = Field(None, description="The formula the source used, where known.")
    last_loss: float | None = None
    skipped: StepsOrZero | None = Field(None, description="Iterations skipped by the loss scaler.")
    nan: StepsOrZero | None = None
    straggler: str | None = Field(None, description="A rank that was slower than its peers: the machine's time.")


class Source(Spec):
    kind: Literal["run", "log", "notes", "csv", "published"]
    file: str = ""
    line: PositiveInt | None = None
    section: str = ""
    table: str = Field("", description="Rows with the same value were printed together.")
    label: str = Field("", description="The source's own name for the row.")
    date: str = Field("", description="As printed.")
    note: str = ""


class Trial(Spec):
    id: str
    setup: Setup
    job: Job | None = Field(None, description="The complete Job, where known.")
    outcome: Outcome
    source: Source
    corrects: str | None = Field(None, description="Id of the trial that this one corrects.")
    corrections: dict[str, Any] = Field(default_factory=dict, description="Field -> value corrected by the audit.")
    code_version: str = ""
    host: str = ""
    recorded_at: str = Field("", description="UTC, ISO 8601.")
