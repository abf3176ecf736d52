"""torchtitan's TOML file, the module of the model's shape where one is needed, and the scripts that start it."""

import json
import math
from typing import Any

from trimaran.export.adapt import LaunchFiles
from trimaran.export.flags import field_of
from trimaran.export.launch_script import NAME, environment_lines, slurm_script
from trimaran.export.torchtitan import keys, shapes
from trimaran.export.torchtitan.adapt import adapt_job, local_batch
from trimaran.export.torchtitan.config import to_toml
from trimaran.export.torchtitan.stages import stage_keys
from trimaran.spec import Job

TOML, RUN, BATCH = "train.toml", "run.sh", "train.slurm"


def to_torchtitan(job: Job) -> LaunchFiles:
    adapted, unsupported = adapt_job(job)
    flavour = shapes.shipped_flavour(adapted)
    comments = {"": "Written by `trimaran export` for torchtitan 0.2.2."}
    tables = _tables(adapted, flavour)
    files = {}
    if flavour is None:
        files[f"{shapes.MODULE}.py"] = shapes.MODULE_TEXT
        comments["shape"] = f"Read by {shapes.MODULE}.py, which must lie beside this file."
    else:
        comments["model"] = "This flavour also scales rotary frequencies as Llama 3.1 does, which a Job cannot express."
    files |= {RUN: _run_script(job), BATCH: slurm_script(job, RUN)}
    return LaunchFiles({TOML: to_toml(tables, comments), **files}, unsupported)


def _tables(job: Job, flavour: str | None) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": ".", "custom_config_module": shapes.MODULE if flavour is None else None},
        "profiling": {"enable_profiling": False, "enable_memory_snapshot": False},
        "metrics": {"log_freq": 1, "enable_tensorboard": False},
        "model": {
            "name": shapes.SHAPED if flavour is None else shapes.LLAMA3,
            "flavor": flavour or shapes.FLAVOUR,
            "hf_assets_path": "./tokenizer",
            "converters": [keys.FLOAT8] if job.precision == "fp8" else [],
        },
        **({"shape": shapes.shape_keys(job)} if flavour is None else {}),
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
    same = keys.same_fields(saving=job.saving.folder is not None, validation=job.validation.every is not None)
    for key, field in same.items():
        section, _, name = key.rpartition(".")
        tables[section][name] = field_of(job, field)
    return tables


def _optimizer(job: Job) -> dict[str, Any]:
    first, second = job.recipe.betas
    implementation = keys.IMPLEMENTATIONS[job.optimizer]
    return {"name": "AdamW", "beta1": first, "beta2": second, "implementation": implementation}


def _rate(job: Job) -> dict[str, Any]:
    """A constant rate is a decay over none of the steps."""
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
        "fsdp_reshard_after_forward": keys.RESHARD.get(layout.zero, "default"),
        "pipeline_parallel_microbatch_size": layout.micro_batch if layout.pp > 1 else None,
        **stage_keys(job),
    }


def _checkpoint(job: Job) -> dict[str, Any]:
    """The last checkpoint includes the optimizer, so that the job can resume from it."""
    saving = job.saving
    if saving.folder is None:
        return {"enable": False}
    asynchronous = keys.ASYNC[saving.asynchronous]
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


def _run_script(job: Job) -> str:
    """Started once on every node. Its arguments go to torchtitan; LAUNCHER=echo shows the command."""
    cluster, layout = job.cluster, job.layout
    last_stage = (layout.pp - 1) * layout.dp * layout.tp % cluster.devices_per_node
    lines = [
        "#!/bin/bash",
        NAME + json.dumps(job.name),
        f"# torchtitan 0.2.2. Written by Trimaran. Start it on every node, or with `sbatch {BATCH}` once.",
        "set -euo pipefail",
        "",
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        'TOKENIZER="${TOKENIZER:-$HERE/tokenizer}"  # the folder of a Hugging Face tokenizer',
        'DATASET_PATH="${DATASET_PATH:-}"  # a copy of c4; without it torchtitan streams it from the hub',
        "",
        f"NNODES={cluster.nodes}",
        f"GPUS_PER_NODE={cluster.devices_per_node}",
        'MASTER_ADDR="${MASTER_ADDR:-localhost}"',
        'MASTER_PORT="${MASTER_PORT:-6000}"',
        f'LOG_RANK="${{LOG_RANK:-{last_stage}}}"  # of each node; the loss is known on the last pipeline stage',
        "",
        'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"',
        'export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"',
        *environment_lines(job),
        "",
        'LAUNCHER="${LAUNCHER:-python -u -m torch.distributed.run}"',
        "DISTRIBUTED_ARGS=(",
        '    --nproc_per_node "$GPUS_PER_NODE"',
        '    --nnodes "$NNODES"',
        '    --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"',
        "    --rdzv_backend c10d",
        '    --local-ranks-filter "$LOG_RANK"',
        "    --role rank",
        "    --tee 3",
        ")",
        f'TITAN_ARGS=(--job.config_file "$HERE/{TOML}" --model.hf_assets_path "$TOKENIZER")',
        'if [ -n "$DATASET_PATH" ]; then TITAN_ARGS+=(--training.dataset_path "$DATASET_PATH"); fi',
        "",
        'exec $LAUNCHER "${DISTRIBUTED_ARGS[@]}" -m torchtitan.train "${TITAN_ARGS[@]}" "$@"',
        "",
    ]
    return "\n".join(lines)
