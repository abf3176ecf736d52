"""The Job that torchtitan can be told: the one that was given, with something else in the place of each field that it
has no word for."""

import math
from collections.abc import Iterator
from typing import Any

from trimaran.export.exported import Cannot
from trimaran.export.launch import is_variable
from trimaran.export.torchtitan.shapes import impossible
from trimaran.spec import Data, Job, LossScale, Mistake, Saving, Validation, presets

Instead = tuple[str, Any, str]  # the field, what it becomes, and why

SAVED_EVERY = 500  # torchtitan's own default
DEFAULT_DATA, DEFAULT_SAVING, DEFAULT_VALIDATION = Data(), Saving(), Validation()


def expressible(job: Job) -> tuple[Job, tuple[Cannot, ...]]:
    """The Job as torchtitan will run it, checked again by torchtitan's rules, and what became different."""
    why = impossible(job.model, job.layout.tp)
    if why is not None:
        raise Mistake(f"The job {job.name} cannot be exported to torchtitan: {why}.")
    values, cannot = job.model_dump(), []
    for rule in RULES:
        for field, value, reason in rule(job):
            _place(values, field.split("."), value)
            cannot.append(Cannot(field, reason))
    return Job.of(values, f"The job {job.name} as torchtitan would run it"), tuple(cannot)


def _place(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = value


def _trainer(job: Job) -> Iterator[Instead]:
    torchtitan = presets.trainer("torchtitan")
    if job.trainer != torchtitan:
        why = f"The job is for {job.trainer.name}; these files start torchtitan."
        yield "trainer", torchtitan.model_dump(), why


def _model(job: Job) -> Iterator[Instead]:
    model = job.model
    if model.mlp != "swiglu":
        yield "model.mlp", "swiglu", "llama3's MLP is swiglu: three matrices of this width, not two, so it is larger."
    if model.norm != "rmsnorm":
        yield "model.norm", "rmsnorm", "llama3 has RMS norms in the place of layer norms."
    if model.position != "rotary":
        yield "model.position", "rotary", f"llama3's positions are rotary, with the base {model.rotary_base:g}."
    if model.bias:
        yield "model.bias", False, "llama3's linear layers have no biases; they are left out."
    if model.embedding_norm:
        yield "model.embedding_norm", False, "llama3 has no norm after the embedding; it is left out."
    if model.tied_embeddings:
        yield (
            "model.tied_embeddings",
            False,
            "llama3 does not tie embeddings: the logits get a matrix of their own.",
        )
    if model.objective != "causal":
        yield "model.objective", "causal", "llama3 is causal: no token sees a later one, in a prefix neither."


def _layout(job: Job) -> Iterator[Instead]:
    layout = job.layout
    if layout.zero == 1:
        yield "layout.zero", 2, "FSDP2 has no stage 1: gradients are cut too, and weights kept after the forward pass."
    elif layout.zero == 0 and (layout.pp > 1 or (layout.dp > 1 and layout.tp > 1)):
        why = "torchtitan replicates weights only where there is no other parallelism; FSDP2 cuts states and gradients."
        yield "layout.zero", 2, why
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "layout.sequence_parallel", True, "Its tensor parallelism always cuts norms along the sequence."
    elif layout.tp == 1 and layout.sequence_parallel:
        yield "layout.sequence_parallel", False, "With tp 1 there is nothing to cut the sequence over; it is left out."


def _batch(job: Job) -> Iterator[Instead]:
    if job.batch.ramp is not None:
        yield "batch.ramp", None, f"There is no ramp-up: every step has the full batch of {job.batch.size}."


def _precision(job: Job) -> Iterator[Instead]:
    layout, precision = job.layout, job.precision
    if precision == "fp16":
        precision = "bf16" if "bf16" in job.cluster.device.peak_tflops else "fp32"
        yield "precision", precision, f"There is no loss scaler, so no fp16; it trains in {precision}."
    if precision in ("bf16", "fp8") and layout.dp == 1 and layout.devices > 1:
        yield (
            "trainer.master_bytes",
            presets.trainer("torchtitan").master_bytes,
            "It mixes precisions only through FSDP2, and dp is 1: training.dtype is bfloat16, so weights and moments"
            " have no fp32 copy.",
        )
    if job.recipe.loss_scale != LossScale():
        yield "recipe.loss_scale", LossScale().model_dump(), "There is no loss scaler; it is left out."


def _recipe(job: Job) -> Iterator[Instead]:
    if job.optimizer == "adam-8bit":
        yield "optimizer", "fused-adam", "There is no 8-bit Adam; the moments are in fp32, in the fused AdamW."
    if job.recipe.undecayed:
        left = " and ".join(job.recipe.undecayed)
        yield "recipe.undecayed", (), f"It decays every parameter alike, so {left} decay too."
    yield from _rate(job)


def _rate(job: Job) -> Iterator[Instead]:
    """Samples become steps of the full batch. Past its last step the curve of torchtitan is not defined."""
    recipe, size = job.recipe, job.batch.size
    warmup = math.ceil(recipe.warmup_samples / size)
    if warmup * size != recipe.warmup_samples:
        yield "recipe.warmup_samples", warmup * size, f"The warm-up is counted in steps of {size} samples: {warmup}."
    shortest = max(job.steps, warmup)
    if recipe.decay_samples is None:
        if warmup > job.steps:
            why = f"It would shorten a warm-up longer than the job, so the schedule is said to have {warmup} steps."
            yield "recipe.decay_samples", warmup * size, why
        return
    total = math.ceil(recipe.decay_samples / size)
    if total < shortest:
        why = f"Past the end of the fall its learning rate would fall on, so the fall ends with step {shortest}."
        yield "recipe.decay_samples", shortest * size, why
    elif total * size != recipe.decay_samples:
        yield "recipe.decay_samples", total * size, f"The fall is counted in steps of {size} samples: {total}."


def _data(job: Job) -> Iterator[Instead]:
    data = job.data
    yield (
        "data.source",
        DEFAULT_DATA.source,
        "It reads text, not prepared tokens: c4, unless DATASET_PATH in run.sh names a copy; TOKENIZER names the"
        " folder of a Hugging Face tokenizer.",
    )
    if data.validation != DEFAULT_DATA.validation:
        yield (
            "data.validation",
            DEFAULT_DATA.validation,
            "It keeps no share of the data; c4 has a set of its own.",
        )
    if data.prefix != DEFAULT_DATA.prefix:
        yield "data.prefix", DEFAULT_DATA.prefix, "There are no prefixes; it is left out."
    if data.loss_on != DEFAULT_DATA.loss_on:
        yield "data.loss_on", DEFAULT_DATA.loss_on, "There are no prefixes, so every token is learnt from."


def _saving(job: Job) -> Iterator[Instead]:
    saving = job.saving
    if saving.folder is None:
        for name in ("every", "minutes", "keep", "asynchronous"):
            if getattr(saving, name) != getattr(DEFAULT_SAVING, name):
                why = "No folder is named, so no checkpoints are made and this is left out."
                yield f"saving.{name}", getattr(DEFAULT_SAVING, name), why
        return
    if saving.minutes is not None:
        yield "saving.minutes", None, "Checkpoints are made by steps alone, not by the clock."
    if saving.every is None:
        every = SAVED_EVERY if saving.minutes is not None else job.steps
        yield "saving.every", every, f"It must have an interval: one every {every} steps, and one at the end."
    if saving.keep == 1:
        yield "saving.keep", 2, "It keeps two at least, since the newest may not be whole yet."


def _validation(job: Job) -> Iterator[Instead]:
    validation = job.validation
    if validation.every is None:
        if validation.samples != DEFAULT_VALIDATION.samples:
            yield "validation.samples", DEFAULT_VALIDATION.samples, "There is no validation, so this is left out."
        return
    unit = local_batch(job) * job.layout.dp
    samples = math.ceil(validation.samples / unit) * unit
    if samples != validation.samples:
        yield "validation.samples", samples, f"Validation is counted in steps of {unit} samples: {samples // unit}."


def _environment(job: Job) -> Iterator[Instead]:
    if job.environment:
        odd = [name for name in job.environment if not is_variable(name)]
        lost = f" {', '.join(map(repr, odd))} cannot be the name of a variable there and is left out." if odd else ""
        yield "environment", {}, f"Its file has no place for variables; run.sh sets them.{lost}"


def local_batch(job: Job) -> int:
    """What one replica takes at once, in validation too: a micro batch, or all that a pipeline is built for."""
    return job.batch.size // job.layout.dp if job.layout.pp > 1 else job.layout.micro_batch


RULES = (_trainer, _model, _layout, _batch, _precision, _recipe, _data, _saving, _validation, _environment)
