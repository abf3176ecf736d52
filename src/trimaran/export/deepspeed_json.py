"""DeepSpeed's JSON file: what it says of batch, precision, ZeRO and Adam. The model and its cut are the script's."""

import json
import math
from typing import Any

from trimaran.export.entries import Fields, at, nested
from trimaran.export.exported import Cannot, Exported
from trimaran.export.fitting import fitted
from trimaran.export.found import Found
from trimaran.spec import Batch, Job, Layout, Recipe, presets
from trimaran.spec.base import Spec

TRAINER = "megatron-deepspeed-2022"
SHARDS_ALREADY = "DeepSpeed's bf16 optimizer shards its states by itself, as ZeRO 1 does; that is used instead."

# Fields that the file has no word for, and what happens to them. Only those that are not as they would be anyway.
LOST = {
    "model": "The file describes no model; your training script builds it.",
    "layout.tp": "Your training script cuts the tensors, if it can.",
    "layout.pp": "Your training script makes the pipeline's stages, if it can.",
    "layout.virtual_stages": "DeepSpeed's pipeline has one chunk of layers a stage.",
    "layout.schedule": "DeepSpeed's pipeline runs 1F1B only.",
    "layout.recompute": "Your training script decides which layers are recomputed.",
    "layout.sequence_parallel": "Your training script decides it.",
    "layout.split": "Your training script gives it to DeepSpeed's PipelineModule as partition_method.",
    "batch.ramp": "The file has one batch size; your training script may call set_train_batch_size.",
    "recipe.warmup_samples": "DeepSpeed's schedulers count steps; your training script sets the learning rate.",
    "recipe.schedule": "DeepSpeed's schedulers count steps; your training script sets the learning rate.",
    "recipe.decay_samples": "DeepSpeed's schedulers count steps; your training script sets the learning rate.",
    "recipe.minimum_learning_rate": "DeepSpeed's schedulers count steps; your training script sets the learning rate.",
    "recipe.undecayed": "Parameter groups are your training script's.",
    "data": "Your training script reads the data.",
    "saving": "Your training script calls save_checkpoint.",
    "validation": "Your training script evaluates.",
    "steps": "Your training script ends the run.",
    "seed": "Your training script sets it.",
    "environment": "The file sets no variables; set them where you start the run.",
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


def to_deepspeed_json(job: Job) -> Exported:
    """One file for a training script that calls deepspeed.initialize."""
    job, cannot = fitted(job, presets.trainer(TRAINER))
    cannot += [Cannot(path, why) for path, why in LOST.items() if path == "model" or at(job, path) != _usual(path)]
    cannot += half_lost(job)
    if job.precision == "bf16" and job.layout.zero == 0:
        cannot.append(Cannot("layout.zero", SHARDS_ALREADY))
    if job.optimizer == "adam-8bit":
        cannot.append(Cannot("optimizer", "DeepSpeed has no 8-bit Adam of its own; its fused Adam is used instead."))
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
    return Exported({"ds_config.json": json.dumps(document, indent=2) + "\n"}, tuple(cannot))


def _usual(path: str) -> Any:
    """What a Job has where nothing is said."""
    noun, _, name = path.rpartition(".")
    kinds: dict[str, type[Spec]] = {"": Job, "layout": Layout, "batch": Batch, "recipe": Recipe}
    return kinds[noun].model_fields[name].get_default(call_default_factory=True)


def settings(job: Job, stage: int) -> dict[str, Any]:
    """What both this file and that of Megatron-DeepSpeed hold."""
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
            "min_loss_scale": least_scale(job),
        }
    return document


def scale_power(job: Job) -> int:
    return max(0, round(math.log2(job.recipe.loss_scale.initial)))


def least_scale(job: Job) -> int:
    return max(1, round(job.recipe.loss_scale.minimum))


def half_lost(job: Job) -> list[Cannot]:
    """What DeepSpeed's own loss scale cannot be told."""
    scale = job.recipe.loss_scale
    if job.precision != "fp16":
        usual = type(scale)()
        return [Cannot("recipe.loss_scale", "It is for fp16 only, so it is left out.")] if scale != usual else []
    lost = []
    if 2.0 ** scale_power(job) != scale.initial:
        why = f"DeepSpeed starts from a power of two; 2^{scale_power(job)} is used instead."
        lost.append(Cannot("recipe.loss_scale.initial", why))
    if least_scale(job) != scale.minimum:
        why = f"DeepSpeed's smallest scale is a whole number; {least_scale(job)} is used instead."
        lost.append(Cannot("recipe.loss_scale.minimum", why))
    return lost


def is_deepspeed_json(document: object) -> bool:
    return isinstance(document, dict) and bool(
        document.keys() & {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
    )


def from_deepspeed_json(document: dict[str, Any]) -> Found:
    unread = tuple(f'"{key}": {json.dumps(document[key])[:80]}' for key in document if key not in READ)
    return Found(nested(fields_of(document)), TRAINER, unread)


def fields_of(document: dict[str, Any]) -> Fields:
    """Values that a tool fills in later ("auto") are not stated."""
    fields: Fields = {}
    micro, size, rounds = (
        document.get(key)
        for key in ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    )
    if isinstance(micro, int):
        fields["layout.micro_batch"] = micro
    if isinstance(size, int):
        fields["batch.size"] = size
    if isinstance(micro, int) and isinstance(size, int) and isinstance(rounds, int) and micro * rounds:
        fields["layout.dp"] = max(1, size // (micro * rounds))
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
