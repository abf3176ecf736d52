"""A Job adapted to torchtitan: each field that it has no option for is replaced, and the replacement reported."""

import math
from collections.abc import Iterator
from typing import Any

from trimaran.export.adapt import Unsupported
from trimaran.export.flags import default_of, field_of
from trimaran.export.launch_script import why_no_variable
from trimaran.export.torchtitan.shapes import why_impossible
from trimaran.spec import Job, Mistake, presets

Replacement = tuple[str, Any, str]  # the field, its new value, and why

SAVE_EVERY = 500  # torchtitan's own default


def adapt_job(job: Job) -> tuple[Job, tuple[Unsupported, ...]]:
    """The Job as torchtitan will run it, checked by torchtitan's rules, and what was replaced."""
    why = why_impossible(job.model, job.layout.tp)
    if why is not None:
        raise Mistake(f"The job {job.name} cannot be exported to torchtitan: {why}.")
    values, unsupported = job.model_dump(), []
    for rule in RULES:
        for field, value, reason in rule(job):
            noun, _, name = field.rpartition(".")
            (values[noun] if noun else values)[name] = value
            unsupported.append(Unsupported(field, reason))
    return Job.of(values, f"The job {job.name} as torchtitan would run it"), tuple(unsupported)


def _leave_out(job: Job, reasons: dict[str, str]) -> Iterator[Replacement]:
    """The default for each of these fields that has another value."""
    for field, why in reasons.items():
        if field_of(job, field) != default_of(field):
            yield field, default_of(field), why


def _trainer(job: Job) -> Iterator[Replacement]:
    torchtitan = presets.trainer("torchtitan")
    if job.trainer != torchtitan:
        why = f"The job is for {job.trainer.name}; these files start torchtitan."
        yield "trainer", torchtitan.model_dump(), why


def _model(job: Job) -> Iterator[Replacement]:
    model = job.model
    for name, value, why in (
        ("mlp", "swiglu", "llama3's MLP is SwiGLU: three matrices of this width, not two, so it is larger."),
        ("norm", "rmsnorm", "llama3 has RMSNorm instead of LayerNorm."),
        ("position", "rotary", f"llama3's positions are rotary, with the base {model.rotary_base:g}."),
        ("bias", False, "llama3's linear layers have no biases; they are left out."),
        ("embedding_norm", False, "llama3 has no norm after the embedding; it is left out."),
        ("tied_embeddings", False, "llama3 does not tie embeddings: the output layer has its own weights."),
        ("objective", "causal", "llama3 is causal: attention in a prefix is causal too."),
    ):
        if getattr(model, name) != value:
            yield f"model.{name}", value, why


def _layout(job: Job) -> Iterator[Replacement]:
    layout = job.layout
    if layout.zero == 1:
        why = "FSDP2 has no stage 1: it shards gradients too, and keeps weights after the forward pass."
        yield "layout.zero", 2, why
    elif layout.zero == 0 and (layout.pp > 1 or (layout.dp > 1 and layout.tp > 1)):
        why = "torchtitan replicates weights only without other parallelism; FSDP2 shards states and gradients."
        yield "layout.zero", 2, why
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "layout.sequence_parallel", True, "Its tensor parallelism is always sequence parallel."
    elif layout.tp == 1 and layout.sequence_parallel:
        yield "layout.sequence_parallel", False, "Sequence parallelism needs tp above 1; it is left out."


def _batch(job: Job) -> Iterator[Replacement]:
    why = f"There is no ramp-up: every step has the full batch of {job.batch.size}."
    yield from _leave_out(job, {"batch.ramp": why})


def _precision(job: Job) -> Iterator[Replacement]:
    layout, precision = job.layout, job.precision
    if precision == "fp16":
        precision = "bf16" if "bf16" in job.cluster.device.peak_tflops else "fp32"
        yield "precision", precision, f"There is no loss scaler, so no fp16; it trains in {precision}."
    if precision in ("bf16", "fp8") and layout.dp == 1 and layout.devices > 1:
        why = "Mixed precision needs FSDP2, and dp is 1: training.dtype is bfloat16, so weights and moments"
        yield "trainer.master_bytes", presets.trainer("torchtitan").master_bytes, f"{why} have no fp32 copy."
    yield from _leave_out(job, {"recipe.loss_scale": "There is no loss scaler; it is left out."})


def _recipe(job: Job) -> Iterator[Replacement]:
    if job.optimizer == "adam-8bit":
        yield "optimizer", "fused-adam", "There is no 8-bit Adam; the fused AdamW with fp32 moments is used instead."
    if job.recipe.undecayed:
        left = " and ".join(job.recipe.undecayed)
        yield "recipe.undecayed", (), f"Weight decay applies to every parameter, so {left} decay too."


def _rate(job: Job) -> Iterator[Replacement]:
    """Samples become steps of the full batch. torchtitan's schedule is not defined past its last step."""
    recipe, size = job.recipe, job.batch.size
    warmup = math.ceil(recipe.warmup_samples / size)
    if warmup * size != recipe.warmup_samples:
        yield "recipe.warmup_samples", warmup * size, f"The warm-up is counted in steps of {size} samples: {warmup}."
    shortest = max(job.steps, warmup)
    if recipe.decay_samples is None:
        if warmup > job.steps:
            why = f"It would shorten a warm-up longer than the job, so total_steps is {warmup}."
            yield "recipe.decay_samples", warmup * size, why
        return
    total = math.ceil(recipe.decay_samples / size)
    if total < shortest:
        why = f"Its learning rate would keep decaying past the end, so the decay ends at step {shortest}."
        yield "recipe.decay_samples", shortest * size, why
    elif total * size != recipe.decay_samples:
        yield "recipe.decay_samples", total * size, f"The decay is counted in steps of {size} samples: {total}."


def _data(job: Job) -> Iterator[Replacement]:
    copy = "c4, unless DATASET_PATH in run.sh names a copy"
    why = f"It reads text, not tokenized data: {copy}; TOKENIZER names the folder of a Hugging Face tokenizer."
    yield "data.source", default_of("data.source"), why
    reasons = {
        "data.validation": "It holds out no share of the data; c4 has a validation set.",
        "data.prefix": "There are no prefixes; it is left out.",
        "data.loss_on": "There are no prefixes, so the loss is over all tokens.",
    }
    yield from _leave_out(job, reasons)


def _saving(job: Job) -> Iterator[Replacement]:
    saving = job.saving
    if saving.folder is None:
        fields = [f"saving.{name}" for name in ("every", "minutes", "keep", "asynchronous")]
        why = "Without a folder there are no checkpoints, so this is left out."
        yield from _leave_out(job, dict.fromkeys(fields, why))
        return
    if saving.minutes is not None:
        yield "saving.minutes", None, "Checkpoints are saved every so many steps, not minutes."
    if saving.every is None:
        every = SAVE_EVERY if saving.minutes is not None else job.steps
        yield "saving.every", every, f"It needs an interval: {every} steps is used, and the last step is saved too."
    if saving.keep == 1:
        yield "saving.keep", 2, "It keeps at least two, since the newest may be incomplete."


def _validation(job: Job) -> Iterator[Replacement]:
    validation = job.validation
    if validation.every is None:
        yield from _leave_out(job, {"validation.samples": "There is no validation, so this is left out."})
        return
    unit = local_batch(job) * job.layout.dp
    samples = math.ceil(validation.samples / unit) * unit
    if samples != validation.samples:
        yield "validation.samples", samples, f"Validation is counted in steps of {unit} samples: {samples // unit}."


def _environment(job: Job) -> Iterator[Replacement]:
    if job.environment:
        reasons = {name: why for name in job.environment if (why := why_no_variable(name))}
        lost = "".join(f" {name!r} {why}; it is left out." for name, why in reasons.items())
        yield "environment", {}, f"Its file has no environment variables; run.sh sets them.{lost}"


def local_batch(job: Job) -> int:
    """Samples per replica and forward pass, in validation too: a micro batch, or with a pipeline the whole step."""
    return job.batch.size // job.layout.dp if job.layout.pp > 1 else job.layout.micro_batch


RULES = (_trainer, _model, _layout, _batch, _precision, _recipe, _rate, _data, _saving, _validation, _environment)
