"""What a TOML file of torchtitan states of a Job."""

import math
from collections.abc import Callable

from trimaran.export.flags import Fields, nest
from trimaran.export.partial_job import PartialJob
from trimaran.export.torchtitan import keys
from trimaran.export.torchtitan.config import TitanConfig
from trimaran.export.torchtitan.shapes import read_shape
from trimaran.export.torchtitan.stages import read_stages
from trimaran.spec import Mistake

TRAINER = "torchtitan"
TP, PP = "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"
REPLICAS, SHARDS = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
LOCAL, GLOBAL = "training.local_batch_size", "training.global_batch_size"
REMAINING = -1  # the shard degree takes all remaining devices


def from_torchtitan(text: str, name: str) -> PartialJob:
    """torchtitan's defaults are stated too: they are what the job would run with."""
    config = TitanConfig.of(text, name)
    if config.get("parallelism.context_parallel_degree") != 1:
        raise Mistake(f"{name} has context parallelism, which a Job cannot express; set its degree to 1.")
    fields = _equal_fields(config) | read_shape(config)
    dp = _replicas(config)
    fields |= _layout(config, dp, fields.get("model.layers")) | _recipe(config)
    fields |= {"optimizer": _optimizer(config), "precision": _precision(config, dp)} | _saving(config)
    counts = _counts(config)
    if dp is not None:
        fields |= counts(dp)
    return PartialJob(nest(fields), TRAINER, config.unread, None if dp is not None else counts)


def _equal_fields(config: TitanConfig) -> Fields:
    """The keys that equal a field of the Job; name and seed only where the file states them."""
    same = keys.same_fields(config.get("checkpoint.enable"), config.get("validation.enable"))
    return {
        field: config.get(key) for key, field in same.items() if field not in ("name", "seed") or config.states(key)
    }


def _replicas(config: TitanConfig) -> int | None:
    """dp, or None where it takes the devices that the other degrees leave."""
    replicas, shards = config.positive(REPLICAS), config.get(SHARDS)
    if shards != 1 and replicas > 1:
        config.report(REPLICAS)  # HSDP: sharded over some replicas, replicated over others
    return None if shards == REMAINING else replicas * config.positive(SHARDS)


def _layout(config: TitanConfig, dp: int | None, layers: int | None) -> Fields:
    tp, pp = config.positive(TP), config.positive(PP)
    micro = "parallelism.pipeline_parallel_microbatch_size" if pp > 1 else LOCAL
    if pp > 1 and dp is not None and 0 < config.positive(LOCAL) * dp < config.get(GLOBAL):
        config.report(LOCAL)  # gradient accumulation: several pipeline flushes per step
    mode, option = config.get("activation_checkpoint.mode"), config.get("activation_checkpoint.selective_ac_option")
    if mode == "memory_budget":
        config.report("activation_checkpoint.mode")
    if mode == "selective" and option != "op":
        config.report("activation_checkpoint.selective_ac_option")  # every n-th layer as a whole
    return {
        **({"layout.dp": dp} if dp is not None else {}),
        "layout.micro_batch": config.positive(micro),
        "layout.zero": _zero(config, pp),
        "layout.recompute": "selective" if mode == "memory_budget" else mode,
        "layout.sequence_parallel": tp > 1,
        **read_stages(config, layers),
    }


def _zero(config: TitanConfig, pp: int) -> int:
    """FSDP2 keeps weights after the forward pass (2) or frees them (3); by default it keeps them with a pipeline."""
    stated = {policy: stage for stage, policy in keys.RESHARD.items()}
    policy, shards = config.get("parallelism.fsdp_reshard_after_forward"), config.get(SHARDS)
    if shards == 1 and config.get(REPLICAS) > 1:
        return 0
    return stated.get(policy, 2 if pp > 1 else 0 if shards == 1 else 3)


def _recipe(config: TitanConfig) -> Fields:
    rate, factor = config.get("optimizer.lr"), config.get("lr_scheduler.min_lr_factor")
    clip = config.get("training.max_norm")
    return {
        "recipe.schedule": _schedule(config),
        "recipe.minimum_learning_rate": min(rate, float(f"{rate * factor:.15g}")),
        "recipe.betas": (config.get("optimizer.beta1"), config.get("optimizer.beta2")),
        "recipe.undecayed": (),
        "recipe.clip": None if clip == math.inf else clip,
    }


def _schedule(config: TitanConfig) -> str:
    ratio, kind = config.get("lr_scheduler.decay_ratio"), config.get("lr_scheduler.decay_type")
    if ratio == 0:
        return "constant"
    total = config.get("lr_scheduler.total_steps") or config.get("training.steps")
    if ratio is not None and config.get("lr_scheduler.warmup_steps") + round(total * ratio) < total:
        config.report("lr_scheduler.decay_ratio")  # a plateau before the decay
    if kind == "sqrt":
        config.report("lr_scheduler.decay_type")
        return "linear"
    return str(kind)


def _optimizer(config: TitanConfig) -> str:
    if config.get("optimizer.name") != "AdamW" and config.get("optimizer.weight_decay"):
        config.report("optimizer.name")  # its weight decay is not decoupled
    fused = config.get("optimizer.implementation") == keys.IMPLEMENTATIONS["fused-adam"]
    return "fused-adam" if fused else "adam"


def _precision(config: TitanConfig, dp: int | None) -> str:
    converters = config.get("model.converters")
    if any(name not in keys.FLOAT8_NAMES for name in converters):
        config.report("model.converters")
    low = config.get("training.mixed_precision_param") == "bfloat16"
    low_weights = config.get("training.dtype") == "bfloat16"
    if low_weights:
        config.report("training.dtype")  # no fp32 master weights, which torchtitan's preset has
    if any(name in keys.FLOAT8_NAMES for name in converters):
        return "fp8"
    mixed = dp != 1 or (config.get(TP) == 1 and config.get(PP) == 1)  # by FSDP2, or by autocast on one device
    return "bf16" if low_weights or (low and mixed) else "fp32"


def _saving(config: TitanConfig) -> Fields:
    if not config.get("checkpoint.enable"):
        return {}
    folder, above = config.get("checkpoint.folder"), config.get("job.dump_folder").removesuffix("/")
    inside = above in ("", ".") or folder.startswith("/")
    asynchronous = config.get("checkpoint.async_mode") != keys.ASYNC[False]
    return {"saving.folder": folder if inside else f"{above}/{folder}", "saving.asynchronous": asynchronous}


def _counts(config: TitanConfig) -> Callable[[int], Fields]:
    """What torchtitan counts in steps or per replica and a Job in samples, as a function of dp."""
    size, local = config.get(GLOBAL), config.positive(LOCAL)
    warmup, total = config.get("lr_scheduler.warmup_steps"), config.get("lr_scheduler.total_steps")
    validated = config.get("validation.steps") if config.get("validation.enable") else 0
    if validated < 0:
        config.report("validation.steps")  # the whole validation set
    together = config.get("validation.local_batch_size")
    warmup = min(warmup, total or config.get("training.steps"))  # torchtitan shortens a longer one

    def fields(dp: int) -> Fields:
        batch = size if size > 0 else local * dp
        return {
            "batch.size": batch,
            "recipe.warmup_samples": warmup * batch,
            "recipe.decay_samples": total * batch if total else None,
            **({"validation.samples": validated * together * dp} if validated > 0 else {}),
        }

    return fields
