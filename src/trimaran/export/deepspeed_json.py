"""DeepSpeed's JSON file: batch, precision, ZeRO and Adam. Model and parallelism are the training script's."""

import json
import math
from collections.abc import Iterator
from typing import Any

from trimaran.export.adapt import LaunchFiles, Reason, Unsupported, adapt_job
from trimaran.export.flags import Fields, default_of, field_of, nest
from trimaran.export.partial_job import PartialJob
from trimaran.spec import Job, LossScale, presets

TRAINER = "megatron-deepspeed-2022"
SHARDS_ALREADY = "DeepSpeed's bf16 optimizer always shards its states, as ZeRO 1 does; that is used instead."

# Fields that the file has no key for, and what happens to them. Reported only where they are not at their default.
_SCHEDULER = "DeepSpeed's schedulers count steps; your training script sets the learning rate."
UNSUPPORTED = {
    "model": "The file describes no model; your training script builds it.",
    "layout.tp": "Tensor parallelism is up to your training script.",
    "layout.pp": "Your training script makes the pipeline's stages, if it can.",
    "layout.virtual_stages": "DeepSpeed's pipeline has no virtual stages.",
    "layout.schedule": "DeepSpeed's pipeline runs 1F1B only.",
    "layout.recompute": "Your training script decides which layers are recomputed.",
    "layout.sequence_parallel": "Sequence parallelism is up to your training script.",
    "layout.split": "Your training script gives it to DeepSpeed's PipelineModule as partition_method.",
    "batch.ramp": "The file has one batch size; your training script may call set_train_batch_size.",
    "recipe.warmup_samples": _SCHEDULER,
    "recipe.schedule": _SCHEDULER,
    "recipe.decay_samples": _SCHEDULER,
    "recipe.minimum_learning_rate": _SCHEDULER,
    "recipe.undecayed": "Parameter groups are your training script's.",
    "data": "Your training script reads the data.",
    "saving": "Your training script calls save_checkpoint.",
    "validation": "Your training script evaluates.",
    "steps": "Your training script ends the run.",
    "seed": "Your training script sets it.",
    "environment": "The file has no environment variables; set them where you start the run.",
}
READ = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_optimization",
    "bf16",
    "bfloat16",
    "fp16",
    "optimizer",
    "steps_per_print",
    "wall_clock_breakdown",
}


def to_deepspeed_json(job: Job) -> LaunchFiles:
    """One file for a training script that calls deepspeed.initialize."""
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    unsupported += [Unsupported(*reason) for reason in _unsupported(job)]
    recipe = job.recipe
    document = {
        **settings(job, stage=job.layout.zero),
        "gradient_accumulation_steps": job.micro_batches,
        "optimizer": {
            "type": "Adam",
            "params": {
                "lr": recipe.learning_rate,
                "betas": list(recipe.betas),
                "eps": recipe.eps,
                "weight_decay": recipe.weight_decay,
                "adam_w_mode": True,
                "torch_adam": job.optimizer == "adam",
            },
        },
    }
    return LaunchFiles({"ds_config.json": json.dumps(document, indent=2) + "\n"}, tuple(unsupported))


def _unsupported(job: Job) -> Iterator[Reason]:
    for path, why in UNSUPPORTED.items():
        if path == "model" or field_of(job, path) != default_of(path):
            yield path, why
    yield from unsupported_loss_scale(job)
    if job.precision == "bf16" and job.layout.zero == 0:
        yield "layout.zero", SHARDS_ALREADY
    if job.optimizer == "adam-8bit":
        yield "optimizer", "DeepSpeed has no 8-bit Adam of its own; its fused Adam is used instead."


def settings(job: Job, stage: int) -> dict[str, Any]:
    """What this file and that of Megatron-DeepSpeed have in common."""
    document: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.layout.micro_batch,
        "train_batch_size": job.batch.size,
        "gradient_clipping": job.recipe.clip or 0.0,
        "zero_optimization": {"stage": stage},
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    }
    if job.precision == "bf16":
        document["bf16"] = {"enabled": True}
    if job.precision == "fp16":
        scale = job.recipe.loss_scale
        document["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": scale_power(job),
            "loss_scale_window": scale.window,
            "hysteresis": scale.hysteresis,
            "min_loss_scale": minimum_scale(job),
        }
    return document


def scale_power(job: Job) -> int:
    return max(0, round(math.log2(job.recipe.loss_scale.initial)))


def minimum_scale(job: Job) -> int:
    return max(1, round(job.recipe.loss_scale.minimum))


def unsupported_loss_scale(job: Job) -> Iterator[Reason]:
    scale = job.recipe.loss_scale
    if job.precision != "fp16":
        if scale != LossScale():
            yield "recipe.loss_scale", "It is for fp16 only, so it is left out."
        return
    power, minimum = scale_power(job), minimum_scale(job)
    if 2.0**power != scale.initial:
        yield "recipe.loss_scale.initial", f"DeepSpeed starts from a power of two; 2^{power} is used instead."
    if minimum != scale.minimum:
        yield "recipe.loss_scale.minimum", f"DeepSpeed's minimum scale is an integer; {minimum} is used instead."


def is_deepspeed_json(document: object) -> bool:
    return isinstance(document, dict) and bool(
        document.keys() & {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
    )


def from_deepspeed_json(document: dict[str, Any]) -> PartialJob:
    unread = tuple(f'"{key}": {json.dumps(document[key])[:80]}' for key in document if key not in READ)
    return PartialJob(nest(fields_of(document)), TRAINER, unread)


def fields_of(document: dict[str, Any]) -> Fields:
    """Without the values "auto", which a tool fills in later."""
    fields: Fields = {}
    for key, path in (("train_micro_batch_size_per_gpu", "layout.micro_batch"), ("train_batch_size", "batch.size")):
        if isinstance(document.get(key), int):
            fields[path] = document[key]
    accumulation = document.get("gradient_accumulation_steps")
    if len(fields) == 2 and isinstance(accumulation, int) and fields["layout.micro_batch"] * accumulation:
        fields["layout.dp"] = max(1, fields["batch.size"] // (fields["layout.micro_batch"] * accumulation))
    if isinstance(document.get("gradient_clipping"), int | float):
        fields["recipe.clip"] = document["gradient_clipping"] or None
    fields |= _precision(document)
    stage = _section(document, "zero_optimization").get("stage", 0)
    if isinstance(stage, int):
        fields["layout.zero"] = zero_of(stage, fields["precision"])
    optimizer = _section(document, "optimizer")
    if str(optimizer.get("type", "")).lower() in ("adam", "adamw"):
        params = _section(optimizer, "params")
        fields["optimizer"] = "adam" if params.get("torch_adam") else "fused-adam"
        named = {"lr": "learning_rate", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay"}
        fields |= {f"recipe.{ours}": params[key] for key, ours in named.items() if params.get(key, "auto") != "auto"}
    return fields


def zero_of(stage: int, precision: str) -> int:
    return 1 if precision == "bf16" and stage == 0 else stage


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _precision(document: dict[str, Any]) -> Fields:
    if (_section(document, "bf16") or _section(document, "bfloat16")).get("enabled") is True:
        return {"precision": "bf16"}
    half = _section(document, "fp16")
    if half.get("enabled") is not True:
        return {"precision": "fp32"}
    named = {"loss_scale_window": "window", "hysteresis": "hysteresis", "min_loss_scale": "minimum"}
    fields = {f"recipe.loss_scale.{ours}": half[key] for key, ours in named.items() if isinstance(half.get(key), int)}
    if isinstance(half.get("initial_scale_power"), int):
        fields["recipe.loss_scale.initial"] = 2.0 ** half["initial_scale_power"]
    return {"precision": "fp16", **fields}
