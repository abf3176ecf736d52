"""A Job adapted to another trainer: what that trainer does not offer is replaced, and each replacement is reported."""

from dataclasses import dataclass
from typing import Any, get_args

from trimaran.spec import Job, TrainerProfile, stage_layers
from trimaran.spec.cluster import Precision
from trimaran.spec.rules import fp8_dims
from trimaran.spec.trainer import Recompute

Reason = tuple[str, str]  # the fields of an Unsupported


@dataclass(frozen=True)
class Unsupported:
    """A field of the Job that the trainer has no option for."""

    field: str  # its dotted path, such as layout.schedule
    why: str  # a sentence that also says what is done instead


@dataclass(frozen=True)
class LaunchFiles:
    """The files that make another trainer run a Job, and what of the Job they cannot express."""

    files: dict[str, str]  # name -> text; a script's name ends in .sh or .slurm
    unsupported: tuple[Unsupported, ...] = ()


def adapt_job(job: Job, trainer: TrainerProfile) -> tuple[Job, list[Unsupported]]:
    """The Job on that trainer; where no value that it offers makes a possible Job, a Mistake says why."""
    if job.trainer == trainer:
        return job, []
    unsupported = [Unsupported("trainer", f"The job is for {job.trainer.name}; these files start {trainer.name}.")]
    layout, changes = job.layout.model_dump(), dict[str, Any]()

    def replace(path: str, value: Any, why: str) -> None:
        noun, _, name = path.rpartition(".")
        (layout if noun else changes)[name] = value
        unsupported.append(Unsupported(path, f"{why}; {value} is used instead."))

    if job.layout.schedule not in trainer.schedules:
        replace("layout.schedule", "1f1b", f"{trainer.name} has no {job.layout.schedule} schedule")
        if job.layout.virtual_stages > 1:
            replace("layout.virtual_stages", 1, "Virtual stages belong to the interleaved schedule")
    offered = trainer.zero_stages if job.layout.pp == 1 else trainer.zero_stages_with_pipeline
    if job.layout.zero not in offered:
        near = max((stage for stage in offered if stage <= job.layout.zero), default=min(offered))
        replace("layout.zero", near, f"{trainer.name} has no ZeRO {job.layout.zero} here")
    if job.layout.recompute not in trainer.recompute:
        order = get_args(Recompute)
        more = [mode for mode in order[order.index(job.layout.recompute) :] if mode in trainer.recompute]
        replace("layout.recompute", (more or trainer.recompute)[0], f"{trainer.name} has no such recompute")
    if job.layout.sequence_parallel and not trainer.sequence_parallel:
        replace("layout.sequence_parallel", False, f"{trainer.name} has no sequence parallelism")
    if stage_layers(job.model.layers, job.layout.model_copy(update=layout)) is None:
        split = "weighted" if job.model.layers % job.layout.pp else "even"
        replace("layout.split", split, "The split was for another number of stages")
    if job.precision not in trainer.precisions:
        usable = [p for p in get_args(Precision) if p in trainer.precisions and p in job.cluster.device.peak_tflops]
        near_precision = "bf16" if "bf16" in usable else (usable or ["fp32"])[0]
        replace("precision", near_precision, f"{trainer.name} does not train in {job.precision}")
    elif narrow := next(fp8_dims(job.model_copy(update={"trainer": trainer})), ""):
        replace("precision", "bf16", narrow.rstrip("."))
    if job.optimizer not in trainer.optimizers:
        replace("optimizer", trainer.optimizers[0], f"{trainer.name} has no {job.optimizer}")
    values = {**job.model_dump(), **changes, "layout": layout, "trainer": trainer.model_dump()}
    return Job.of(values, f"The job {job.name} for {trainer.name}"), unsupported
