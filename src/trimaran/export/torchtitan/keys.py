"""torchtitan's configuration keys: those that equal a field of a Job, defaults of all that are read, and those that are
irrelevant to a Job. From torchtitan/config/job_config.py of v0.2.2."""

from typing import Any

# key of the TOML file -> field of the Job with the same meaning
SAME = {
    "job.description": "name",
    "debug.seed": "seed",
    "optimizer.lr": "recipe.learning_rate",
    "optimizer.eps": "recipe.eps",
    "optimizer.weight_decay": "recipe.weight_decay",
    "training.seq_len": "model.seq_len",
    "training.steps": "steps",
    "parallelism.tensor_parallel_degree": "layout.tp",
    "parallelism.pipeline_parallel_degree": "layout.pp",
}
SAME_IN_CHECKPOINTS = {"checkpoint.interval": "saving.every", "checkpoint.keep_latest_k": "saving.keep"}
SAME_IN_VALIDATION = {"validation.freq": "validation.every"}


def same_fields(saving: bool, validation: bool) -> dict[str, str]:
    """The keys of checkpoints and validation have a meaning only where these are enabled."""
    return SAME | (SAME_IN_CHECKPOINTS if saving else {}) | (SAME_IN_VALIDATION if validation else {})


SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}
RESHARD = {2: "never", 3: "always"}  # after the forward pass, by ZeRO stage
IMPLEMENTATIONS = {"adam": "foreach", "fused-adam": "fused"}
ASYNC = {False: "disabled", True: "async"}
FLOAT8 = "quantize.linear.float8"
FLOAT8_NAMES = (FLOAT8, "float8")  # the second in its own files

# torchtitan's defaults. None: not set.
DEFAULTS: dict[str, Any] = {
    "job.description": "default job",
    "job.dump_folder": "./outputs",
    "debug.seed": None,
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "model.converters": [],
    "optimizer.name": "AdamW",
    "optimizer.lr": 8e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "optimizer.implementation": "fused",
    "lr_scheduler.warmup_steps": 200,
    "lr_scheduler.total_steps": None,
    "lr_scheduler.decay_ratio": None,
    "lr_scheduler.decay_type": "linear",
    "lr_scheduler.min_lr_factor": 0.0,
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.max_norm": 1.0,
    "training.steps": 10000,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.module_fqns_per_model_part": None,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.context_parallel_degree": 1,
    "checkpoint.enable": False,
    "checkpoint.folder": "checkpoint",
    "checkpoint.interval": 500,
    "checkpoint.keep_latest_k": 10,
    "checkpoint.async_mode": "disabled",
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "validation.enable": False,
    "validation.local_batch_size": 8,
    "validation.freq": 10,
    "validation.steps": -1,
}
KINDS: dict[str, tuple[type, ...]] = {  # where the default has another type
    "debug.seed": (int,),
    "lr_scheduler.total_steps": (int,),
    "lr_scheduler.decay_ratio": (float, int),
    "parallelism.module_fqns_per_model_part": (list,),
    "parallelism.pipeline_parallel_layers_per_stage": (int,),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer.implementation": ("for-loop", "foreach", "fused"),
    "lr_scheduler.decay_type": ("linear", "sqrt", "cosine"),
    "training.dtype": ("bfloat16", "float32"),
    "training.mixed_precision_param": ("bfloat16", "float32"),
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "checkpoint.async_mode": ("disabled", "async", "async_with_pinned_mem"),
    "activation_checkpoint.mode": ("selective", "full", "memory_budget", "none"),
}

# Names of torchtitan 0.1 and before.
RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
}

# A Job cannot express these; at this value they are irrelevant.
IRRELEVANT_AT: dict[str, Any] = {
    "compile.enable": False,
    "fault_tolerance.enable": False,
    "optimizer.early_step_in_backward": False,
    "training.enable_cpu_offload": False,
    "parallelism.disable_loss_parallel": False,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.expert_parallel_degree": 1,
    "parallelism.expert_tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_schedule_csv": "",
}
# Neither layout nor recipe depends on these; a star matches any key below.
IRRELEVANT = (
    "job.*",
    "profiling.*",
    "metrics.*",
    "comm.*",
    "memory_estimation.*",
    "fault_tolerance.*",
    "experimental.*",
    "compile.*",
    "quantize.*",
    "float8.*",
    "mx.*",
    "model.hf_assets_path",
    "model.tokenizer_path",
    "model.print_after_conversion",
    "training.gc_freq",
    "training.gc_debug",
    "training.mixed_precision_reduce",
    "training.dataloader.*",
    "parallelism.context_parallel_*",
    "parallelism.expert_parallel_comm_backend",
    "parallelism.pipeline_parallel_expert_parallel_overlap",
    "checkpoint.*",
    "activation_checkpoint.*",
    "validation.*",
    "debug.*",
)
