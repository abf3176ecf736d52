"""A Job as near as another trainer comes to it: what that trainer does not offer is replaced, and said."""

from typing import Any, get_args

from trimaran.export.exported import Cannot
from trimaran.spec import Job, TrainerProfile, stage_layers
from trimaran.spec.cluster import Precision
from trimaran.spec.rules import fp8_dims
from trimaran.spec.trainer import Recompute


def fitted(job: Job, trainer: TrainerProfile) -> tuple[Job, list[Cannot]]:
    """The Job on that trainer; where no value that it offers makes a possible Job, a Mistake says why."""
    if job.trainer == trainer:
        return job, []
    cannot = [Cannot("trainer", f"The job is for {job.trainer.name}; these files start {trainer.name}.")]
    layout, changes = job.layout.model_dump(), dict[str, Any]()

    def instead(path: str, value: Any, why: str) -> None:
        noun, _, name = path.rpartition(".")
        (layout if noun else changes)[name] = value
        cannot.append(Cannot(path, f"{why}; {value} is used instead."))

    if job.layout.schedule not in trainer.schedules:
        instead("layout.schedule", "1f1b", f"{trainer.name} has no {job.layout.schedule} schedule")
        if job.layout.virtual_stages > 1:
            instead("layout.virtual_stages", 1, "Chunks of layers belong to the interleaved schedule")
    offered = trainer.zero_stages if job.layout.pp == 1 else trainer.zero_stages_with_pipeline
    if job.layout.zero not in offered:
        near = max((stage for stage in offered if stage <= job.layout.zero), default=min(offered))
        instead("layout.zero", near, f"{trainer.name} has no ZeRO {job.layout.zero} here")
    if job.layout.recompute not in trainer.recompute:
        order = get_args(Recompute)
        more = [mode for mode in order[order.index(job.layout.recompute) :] if mode in trainer.recompute]
        instead("layout.recompute", (more or trainer.recompute)[0], f"{trainer.name} has no such recompute")
    if job.layout.sequence_parallel and not trainer.sequence_parallel:
        instead("layout.sequence_parallel", False, f"{trainer.name} has no sequence parallelism")
    if stage_layers(job.model.layers, job.layout.model_copy(update=layout)) is None:
        split = "weighted" if job.model.layers % job.layout.pp else "even"
        instead("layout.split", split, "The split was for another number of stages")
    if job.precision not in trainer.precisions:
        usable = [p for p in get_args(Precision) if p in trainer.precisions and p in job.cluster.device.peak_tflops]
        near_precision = "bf16" if "bf16" in usable else (usable or ["fp32"])[0]
        instead("precision", near_precision, f"{trainer.name} does not train in {job.precision}")
    elif narrow := next(fp8_dims(job.model_copy(update={"trainer": trainer})), ""):
        instead("precision", "bf16", narrow.rstrip("."))
    if job.optimizer not in trainer.optimizers:
        instead("optimizer", trainer.optimizers[0], f"{trainer.name} has no {job.optimizer}")
    values = {**job.model_dump(), **changes, "layout": layout, "trainer": trainer.model_dump()}
    return Job.of(values, f"The job {job.name} for {trainer.name}"), cannot
