"""Writing: the TOML file, the module of the shape where one is needed, and the scripts that start it."""

import math
from typing import Any

from trimaran.export.exported import Exported
from trimaran.export.torchtitan import words
from trimaran.export.torchtitan.expressible import expressible, local_batch
from trimaran.export.torchtitan.launch import scripts
from trimaran.export.torchtitan.module import TEXT
from trimaran.export.torchtitan.shapes import FLAVOUR, LLAMA3, MODULE, SHAPED, shape_keys, shipped_flavour
from trimaran.export.torchtitan.stages import stage_keys
from trimaran.export.torchtitan.toml import written
from trimaran.spec import Job

TOML = "train.toml"


def to_torchtitan(job: Job) -> Exported:
    told, cannot = expressible(job)
    flavour = shipped_flavour(told)
    comments = {"": "Written by `trimaran export` for torchtitan 0.2.2."}
    tables = _tables(told, flavour)
    files = {}
    if flavour is None:
        files[f"{MODULE}.py"] = TEXT
        comments["shape"] = f"Read by {MODULE}.py, which must lie beside this file."
    else:
        comments["model"] = "This flavour also stretches long rotary waves as Llama 3.1 does, which a Job cannot say."
    return Exported({TOML: written(tables, comments), **files, **scripts(job, TOML)}, cannot)


def _tables(job: Job, flavour: str | None) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": ".", "custom_config_module": MODULE if flavour is None else None},
        "profiling": {"enable_profiling": False, "enable_memory_snapshot": False},
        "metrics": {"log_freq": 1, "enable_tensorboard": False},
        "model": {
            "name": SHAPED if flavour is None else LLAMA3,
            "flavor": flavour or FLAVOUR,
            "hf_assets_path": "./tokenizer",
            "converters": [words.FLOAT8] if job.precision == "fp8" else [],
        },
        **({"shape": shape_keys(job)} if flavour is None else {}),
        "optimizer": _optimizer(job),
        "lr_scheduler": _rate(job),
        "training": _training(job),
        "parallelism": _parallelism(job),
        "checkpoint": _checkpoint(job),
        "activation_checkpoint": {"mode": job.layout.recompute, "selective_ac_option": "op"},
        "compile": {"enable": job.precision == "fp8", "components": ["model", "loss"]},  # float8 is slow without
        **({"quantize.linear.float8": _float8(job)} if job.precision == "fp8" else {}),
        "validation": _validation(job),
        "debug": {},
    }
    plain = job.model_dump()
    same = dict(words.SAME)
    same |= words.SAME_IN_CHECKPOINTS if job.saving.folder is not None else {}
    same |= words.SAME_IN_VALIDATION if job.validation.every is not None else {}
    for key, field in same.items():
        section, _, name = key.rpartition(".")
        tables[section][name] = _at(plain, field)
    return tables


def _at(values: Any, field: str) -> Any:
    for name in field.split("."):
        values = values[name]
    return values


def _optimizer(job: Job) -> dict[str, Any]:
    first, second = job.recipe.betas
    implementation = words.IMPLEMENTATIONS[job.optimizer]
    return {"name": "AdamW", "beta1": first, "beta2": second, "implementation": implementation}


def _rate(job: Job) -> dict[str, Any]:
    """Without a fall after the warm-up its share of the steps is none."""
    recipe, size = job.recipe, job.batch.size
    constant = recipe.schedule == "constant"
    return {
        "warmup_steps": recipe.warmup_samples // size,
        "total_steps": recipe.decay_samples // size if recipe.decay_samples is not None else None,
        "decay_ratio": 0.0 if constant else None,
        "decay_type": "linear" if constant else recipe.schedule,
        "min_lr_factor": recipe.minimum_learning_rate / recipe.learning_rate,
    }


def _training(job: Job) -> dict[str, Any]:
    low = job.precision in ("bf16", "fp8")
    unmixed = job.layout.dp == 1 and job.layout.devices > 1
    return {
        "dataset": "c4",
        "local_batch_size": local_batch(job),
        "global_batch_size": job.batch.size,
        "max_norm": math.inf if job.recipe.clip is None else job.recipe.clip,
        "dtype": "bfloat16" if low and unmixed else "float32",
        "mixed_precision_param": "bfloat16" if low else "float32",
    }


def _parallelism(job: Job) -> dict[str, Any]:
    layout = job.layout
    replicated = layout.zero == 0
    return {
        "data_parallel_replicate_degree": layout.dp if replicated else 1,
        "data_parallel_shard_degree": 1 if replicated else layout.dp,
        "fsdp_reshard_after_forward": words.RESHARD.get(layout.zero, "default"),
        "pipeline_parallel_microbatch_size": layout.micro_batch if layout.pp > 1 else None,
        **stage_keys(job),
    }


def _checkpoint(job: Job) -> dict[str, Any]:
    """The last checkpoint is a whole one, so that the job can go on from it."""
    saving = job.saving
    if saving.folder is None:
        return {"enable": False}
    asynchronous = words.ASYNC[saving.asynchronous]
    return {"enable": True, "folder": saving.folder, "last_save_model_only": False, "async_mode": asynchronous}


def _float8(job: Job) -> dict[str, Any]:
    sharded = job.layout.zero > 0 and job.layout.dp > 1
    return {
        "enable_fsdp_float8_all_gather": sharded,
        "precompute_float8_dynamic_scale_for_fsdp": sharded,
        "filter_fqns": ["output"],
    }


def _validation(job: Job) -> dict[str, Any]:
    if job.validation.every is None:
        return {"enable": False}
    local = local_batch(job)
    return {
        "enable": True,
        "dataset": "c4_validation",
        "local_batch_size": local,
        "seq_len": job.model.seq_len,
        "steps": job.validation.samples // (local * job.layout.dp),
    }
