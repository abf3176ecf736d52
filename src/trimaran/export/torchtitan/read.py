"""Reading: what a TOML file of torchtitan states of a Job."""

import math
from collections.abc import Callable
from typing import Any

from trimaran.export.found import Found
from trimaran.export.torchtitan import words
from trimaran.export.torchtitan.config import Config
from trimaran.export.torchtitan.shapes import read_shape
from trimaran.export.torchtitan.stages import read_stages
from trimaran.spec import Mistake

TRAINER = "torchtitan"
TP, PP = "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"
REPLICAS, SHARDS = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
LOCAL, GLOBAL = "training.local_batch_size", "training.global_batch_size"
THE_REST = -1  # the shard degree takes all devices that are left

Values = dict[str, Any]


def from_torchtitan(text: str, name: str) -> Found:
    """What the file leaves to torchtitan's defaults is stated too: it is what the job would run with."""
    config = Config.of(text, name)
    if config.get("parallelism.context_parallel_degree") != 1:
        raise Mistake(f"{name} cuts sequences by context parallelism, which a Job has no word for; set it to 1.")
    values = _same(config)
    model, documents = read_shape(config)
    dp = _replicas(config)
    _join(values, {"model": model, "layout": _layout(config, dp, model.get("layers")), "recipe": _recipe(config)})
    values["optimizer"] = _optimizer(config)
    values["precision"] = _precision(config, dp)
    if documents is not None:
        _join(values, {"data": {"documents": documents}})
    _join(values, _saving(config))
    counted = _counted(config)
    if dp is not None:
        _join(values, counted(dp))
    return Found(values, TRAINER, config.unread, None if dp is not None else counted)


def _join(values: Values, more: Values) -> None:
    for noun, fields in more.items():
        values[noun] = {**values.get(noun, {}), **fields}


def _same(config: Config) -> Values:
    """The keys with the meaning of a field; a name or seed that nobody stated stays open."""
    same = dict(words.SAME)
    same |= words.SAME_IN_CHECKPOINTS if config.get("checkpoint.enable") else {}
    same |= words.SAME_IN_VALIDATION if config.get("validation.enable") else {}
    values: Values = {}
    for key, field in same.items():
        if field in ("name", "seed") and not config.states(key):
            continue
        noun, _, name = field.rpartition(".")
        if noun:
            values.setdefault(noun, {})[name] = config.get(key)
        else:
            values[field] = config.get(key)
    return values


def _replicas(config: Config) -> int | None:
    """dp, or None where it is what the other degrees leave."""
    replicas, shards = config.positive(REPLICAS), config.get(SHARDS)
    if shards != 1 and replicas > 1:
        config.miss(REPLICAS)  # weights cut over some replicas and repeated over others
    return None if shards == THE_REST else replicas * config.positive(SHARDS)


def _layout(config: Config, dp: int | None, layers: int | None) -> Values:
    tp, pp = config.positive(TP), config.positive(PP)
    micro = "parallelism.pipeline_parallel_microbatch_size" if pp > 1 else LOCAL
    if pp > 1 and dp is not None and 0 < config.positive(LOCAL) * dp < config.get(GLOBAL):
        config.miss(LOCAL)  # the pipeline runs empty several times a step
    mode, option = config.get("activation_checkpoint.mode"), config.get("activation_checkpoint.selective_ac_option")
    if mode == "memory_budget":
        config.miss("activation_checkpoint.mode")
    if mode == "selective" and option != "op":
        config.miss("activation_checkpoint.selective_ac_option")  # whole layers, every so many
    return {
        **({"dp": dp} if dp is not None else {}),
        "micro_batch": config.positive(micro),
        "zero": _zero(config, pp),
        "recompute": "selective" if mode == "memory_budget" else mode,
        "sequence_parallel": tp > 1,
        **read_stages(config, layers),
    }


def _zero(config: Config, pp: int) -> int:
    """FSDP2 keeps weights after the forward pass (2) or frees them (3), by default under a pipeline the former."""
    stated = {policy: stage for stage, policy in words.RESHARD.items()}
    policy, shards = config.get("parallelism.fsdp_reshard_after_forward"), config.get(SHARDS)
    if shards == 1 and config.get(REPLICAS) > 1:
        return 0
    return stated.get(policy, 2 if pp > 1 else 0 if shards == 1 else 3)


def _recipe(config: Config) -> Values:
    rate, factor = config.get("optimizer.lr"), config.get("lr_scheduler.min_lr_factor")
    clip = config.get("training.max_norm")
    return {
        "schedule": _schedule(config),
        "minimum_learning_rate": min(rate, float(f"{rate * factor:.15g}")),
        "betas": (config.get("optimizer.beta1"), config.get("optimizer.beta2")),
        "undecayed": (),
        "clip": None if clip == math.inf else clip,
    }


def _schedule(config: Config) -> str:
    ratio, kind = config.get("lr_scheduler.decay_ratio"), config.get("lr_scheduler.decay_type")
    if ratio == 0:
        return "constant"
    total = config.get("lr_scheduler.total_steps") or config.get("training.steps")
    if ratio is not None and config.get("lr_scheduler.warmup_steps") + round(total * ratio) < total:
        config.miss("lr_scheduler.decay_ratio")  # a plateau before the fall
    if kind == "sqrt":
        config.miss("lr_scheduler.decay_type")
        return "linear"
    return str(kind)


def _optimizer(config: Config) -> str:
    if config.get("optimizer.name") != "AdamW" and config.get("optimizer.weight_decay"):
        config.miss("optimizer.name")  # its weight decay goes through the moments
    fused = config.get("optimizer.implementation") == words.IMPLEMENTATIONS["fused-adam"]
    return "fused-adam" if fused else "adam"


def _precision(config: Config, dp: int | None) -> str:
    converters = config.get("model.converters")
    if any(name not in words.FLOAT8_NAMES for name in converters):
        config.miss("model.converters")
    low = config.get("training.mixed_precision_param") == "bfloat16"
    whole = config.get("training.dtype") == "bfloat16"
    if whole:
        config.miss("training.dtype")  # no fp32 copy of the weights, which torchtitan's preset has
    if any(name in words.FLOAT8_NAMES for name in converters):
        return "fp8"
    mixed = dp != 1 or (config.get(TP) == 1 and config.get(PP) == 1)  # FSDP2 does it, or autocast alone
    return "bf16" if whole or (low and mixed) else "fp32"


def _saving(config: Config) -> Values:
    if not config.get("checkpoint.enable"):
        return {}
    folder, above = config.get("checkpoint.folder"), config.get("job.dump_folder").removesuffix("/")
    inside = above in ("", ".") or folder.startswith("/")
    asynchronous = config.get("checkpoint.async_mode") != words.ASYNC[False]
    return {"saving": {"folder": folder if inside else f"{above}/{folder}", "asynchronous": asynchronous}}


def _counted(config: Config) -> Callable[[int], Values]:
    """What torchtitan counts in steps or per replica and a Job in samples, for a number of replicas."""
    size, local = config.get(GLOBAL), config.positive(LOCAL)
    warmup, total = config.get("lr_scheduler.warmup_steps"), config.get("lr_scheduler.total_steps")
    validated = config.get("validation.steps") if config.get("validation.enable") else 0
    if validated < 0:
        config.miss("validation.steps")  # all there is
    together = config.get("validation.local_batch_size")
    warmup = min(warmup, total or config.get("training.steps"))  # it shortens a longer one

    def values(dp: int) -> Values:
        batch = size if size > 0 else local * dp
        return {
            "batch": {"size": batch},
            "recipe": {"warmup_samples": warmup * batch, "decay_samples": total * batch if total else None},
            **({"validation": {"samples": validated * together * dp}} if validated > 0 else {}),
        }

    return values
