"""Megatron-LM: train.sh and train.slurm.

Flags as in its megatron/training/arguments.py at d98e8a6 (August 2026).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.export.adapt import LaunchFiles, Unsupported, adapt_job
from trimaran.export.flags import (
    ChoiceFlag,
    Fields,
    FixedFlags,
    Flags,
    FlagTable,
    Given,
    Line,
    SwitchFlag,
    ValueFlag,
    as_text,
    nest,
    number,
)
from trimaran.export.launch_command import LaunchCommand
from trimaran.export.launch_script import launch_script, slurm_script, unsupported_environment
from trimaran.export.megatron_batch import (
    BatchFlags,
    EvaluationFlags,
    TrainingLength,
    has_ramp_up,
    read_schedule,
    schedule_lines,
)
from trimaran.export.megatron_flags import (
    MODEL,
    PARALLELISM,
    PRECISION,
    RECIPE,
    CheckpointFlags,
    DataPaths,
    DataSplit,
    is_fp16,
    unsupported_by_megatron,
)
from trimaran.export.partial_job import PartialJob
from trimaran.export.pipeline_stages import PipelineSplitFlags
from trimaran.spec import Job, LossScale, presets

TRAINER = "megatron-lm"
SHARDING_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


@dataclass(frozen=True)
class GroupedQueryAttention:
    flags: tuple[str, ...] = ("--group-query-attention", "--num-query-groups")

    def write(self, job: Job) -> list[Line]:
        if job.model.kv_heads == job.model.heads:
            return []
        return [["--group-query-attention"], ["--num-query-groups", str(job.model.kv_heads)]]

    def read(self, given: Given) -> Fields:
        grouped = "--group-query-attention" in given and "--num-query-groups" in given
        return {"model.kv_heads": number(given, "--num-query-groups", int)} if grouped else {}


@dataclass(frozen=True)
class ShardingFlags:
    """The distributed optimizer is ZeRO 1; Megatron-FSDP is 2 and 3."""

    flags: tuple[str, ...] = (
        "--use-distributed-optimizer",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--ckpt-format",
    )

    def write(self, job: Job) -> list[Line]:
        zero, lines = job.layout.zero, [["--overlap-grad-reduce"]]
        if zero:
            lines += [["--use-distributed-optimizer"], ["--overlap-param-gather"]]
        if zero > 1:
            lines += [["--use-megatron-fsdp"], ["--data-parallel-sharding-strategy", SHARDING_STRATEGIES[zero]]]
            lines += [["--ckpt-format", "fsdp_dtensor"]]
        return lines

    def read(self, given: Given) -> Fields:
        if "--use-megatron-fsdp" in given or "--use-custom-fsdp" in given:
            strategy = given.get("--data-parallel-sharding-strategy", ["optim_grads_params"])[0]
            stages = {"no_shard": 0, "optim": 1, **{word: stage for stage, word in SHARDING_STRATEGIES.items()}}
            return {"layout.zero": stages.get(strategy, 3)}
        return {"layout.zero": int("--use-distributed-optimizer" in given)}


@dataclass(frozen=True)
class RecomputeFlags:
    flags: tuple[str, ...] = (
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-activations",
        "--checkpoint-activations",
    )

    def write(self, job: Job) -> list[Line]:
        if job.layout.recompute == "none":
            return []
        every_layer = [["--recompute-method", "uniform"], ["--recompute-num-layers", "1"]]
        granularity = ["--recompute-granularity", job.layout.recompute]
        return [granularity, *(every_layer if job.layout.recompute == "full" else [])]

    def read(self, given: Given) -> Fields:
        if "--checkpoint-activations" in given:  # of older versions
            return {"layout.recompute": "full"}
        if "--recompute-activations" in given:
            return {"layout.recompute": "selective"}
        granularity = given.get("--recompute-granularity", ["none"])[0]
        return {"layout.recompute": granularity if granularity in ("full", "selective") else "none"}


def _without_fusion(job: Job) -> list[Line]:
    """The fused bias-GELU kernel needs a bias."""
    return [["--no-bias-gelu-fusion"]] if job.model.mlp == "gelu" and not job.model.bias else []


def _attention_backend(job: Job) -> list[Line]:
    return [["--attention-backend", "flash"]] if job.precision != "fp32" else []


def _is_rotary(job: Job) -> bool:
    return job.model.position == "rotary"


@dataclass(frozen=True)
class RotaryBase:
    """An integer."""

    flags: tuple[str, ...] = ("--rotary-base",)

    def write(self, job: Job) -> list[Line]:
        return [["--rotary-base", str(_rotary_base(job))]] if _is_rotary(job) else []

    def read(self, given: Given) -> Fields:
        base = number(given, "--rotary-base", float)
        return {} if base is None else {"model.rotary_base": base}


def _rotary_base(job: Job) -> int:
    return max(1, round(job.model.rotary_base))


POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
BLOCKS: dict[str, tuple[Flags, ...]] = {
    "MODEL": (
        *MODEL,
        FixedFlags(
            lambda job: [["--max-position-embeddings", str(job.model.seq_len)]],
            ("--max-position-embeddings",),
        ),
        GroupedQueryAttention(),
        ChoiceFlag("--position-embedding-type", "model.position", POSITIONS, "learned_absolute"),
        RotaryBase(),
        ChoiceFlag("--normalization", "model.norm", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}, "LayerNorm"),
        SwitchFlag("--swiglu", "model.mlp", "swiglu"),
        SwitchFlag("--disable-bias-linear", "model.bias", False, True),
        FixedFlags(_without_fusion, ("--no-bias-gelu-fusion",)),
        SwitchFlag("--untie-embeddings-and-output-weights", "model.tied_embeddings", False),
        ValueFlag("--vocab-size", "model.vocab", int),
        ValueFlag("--padded-vocab-size", "model.padded_vocab", int),
        FixedFlags(
            lambda job: [["--tokenizer-type", "NullTokenizer"], ["--make-vocab-size-divisible-by", "128"]],
            ("--tokenizer-type", "--make-vocab-size-divisible-by"),
        ),
    ),
    "LAYOUT": (
        *PARALLELISM,
        PipelineSplitFlags(),
        SwitchFlag("--sequence-parallel", "layout.sequence_parallel"),
        RecomputeFlags(),
        ShardingFlags(),
        FixedFlags(_attention_backend, ("--attention-backend",)),
    ),
    "BATCH": (
        BatchFlags(
            ("--global-batch-size", "--step-batch-size-schedule", "--rampup-batch-size"), schedule_lines, read_schedule
        ),
        TrainingLength(read_schedule),
    ),
    "OPTIMIZER": (
        *RECIPE,
        *PRECISION,
        ValueFlag("--initial-loss-scale", "recipe.loss_scale.initial", float, None, is_fp16),
    ),
    "DATA": (
        DataPaths(lambda job: [["--mock-data"]]),
        DataSplit(lambda job: job.data.source != "synthetic"),
        SwitchFlag("--dataloader-inter-document-masking", "data.documents", "apart", others=("--reset-position-ids",)),
    ),
    "OUTPUT": (
        CheckpointFlags(),
        SwitchFlag("--async-save", "saving.asynchronous"),
        EvaluationFlags(read_schedule, default_interval=None),
        FixedFlags(
            lambda job: [["--log-interval", "1"], ["--log-throughput"]],
            ("--log-interval", "--log-throughput"),
        ),
    ),
}
READ_BELOW = ("--use-rotary-position-embeddings", "--reset-attention-mask", "--use-custom-fsdp")
WITHOUT_EFFECT = ("--use-mcore-models", "--use-flash-attn", "--transformer-impl")
TABLE = FlagTable(BLOCKS, frozenset((*READ_BELOW, *WITHOUT_EFFECT)))


def to_megatron_lm(job: Job) -> LaunchFiles:
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    unsupported += _unsupported(job)
    if job.model.position == "alibi":
        job = job.replace(
            model=job.model.replace(position="rotary" if job.model.head_dim % 2 == 0 else "learned").model_dump()
        )
    site = ['MEGATRON="${MEGATRON:-.}" # a checkout of NVIDIA/Megatron-LM']
    # Tensor parallelism needs one connection (until Blackwell), Megatron-FSDP more.
    one = 'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'
    exports = [one] if job.layout.zero < 2 and "CUDA_DEVICE_MAX_CONNECTIONS" not in job.environment else []
    what = f"{job.cluster.devices} devices of {job.cluster.name} with Megatron-LM"
    script = launch_script(job, what, "pretrain_gpt.py", TABLE.lines(job), site, exports)
    return LaunchFiles({"train.sh": script, "train.slurm": slurm_script(job, "train.sh")}, tuple(unsupported))


def from_megatron_lm(command: LaunchCommand) -> PartialJob:
    fields = {**command.stated, **TABLE.fields(command.given)}
    if "--use-rotary-position-embeddings" in command.given:
        fields["model.position"] = "rotary"
    if "--reset-attention-mask" in command.given:
        fields["data.documents"] = "apart"
    if fields.get("model.mlp") == "swiglu" and "model.ffn_hidden" not in fields and "model.hidden" in fields:
        fields["model.ffn_hidden"] = int(4 * fields["model.hidden"] * 2 / 3 / 64) * 64
    if "model.vocab" not in fields and "model.padded_vocab" in fields:  # only the tokenizer knows it
        fields["model.vocab"] = fields.pop("model.padded_vocab")
    fields["optimizer"] = "fused-adam"
    unread = command.unread(TABLE)
    schedule = command.given.get("--step-batch-size-schedule")
    if schedule and "ramp" not in fields.get("batch", {}):  # not in equal steps: only the last batch was read
        unread += (as_text("--step-batch-size-schedule", schedule),)
    return PartialJob(nest(fields), TRAINER, unread)


def _unsupported(job: Job) -> Iterator[Unsupported]:
    model, data = job.model, job.data
    yield from unsupported_by_megatron(job)
    yield from unsupported_environment(job)
    if model.position == "alibi":
        instead = "rotary" if model.head_dim % 2 == 0 else "learned"
        yield Unsupported("model.position", f"It has no ALiBi; {instead} positions are used instead.")
    if model.embedding_norm:
        yield Unsupported("model.embedding_norm", "It has no norm after the word embedding; it is left out.")
    if model.objective != "causal":
        yield Unsupported(
            "model.objective", "It has no prefix-LM; attention is causal and the loss is over all tokens."
        )
    if (data.prefix, data.loss_on) != ("row", "targets"):
        yield Unsupported("data.prefix", "It has no prefix-LM, so no prefix is drawn.")
        yield Unsupported("data.loss_on", "It has no prefix-LM; the loss is over all tokens.")
    if model.rotary_base != (_rotary_base(job) if _is_rotary(job) else 10000.0):
        why = (
            f"It takes an integer; {_rotary_base(job)} is used instead."
            if _is_rotary(job)
            else "There are no rotary positions."
        )
        yield Unsupported("model.rotary_base", why)
    if job.batch.ramp is not None and not has_ramp_up(job.batch):
        yield Unsupported("batch.ramp", "It starts at the full batch, so it is left out.")
    if data.source == "synthetic" and data.validation != type(data)().validation:
        yield Unsupported("data.validation", "Synthetic data has no documents to hold out.")
    if job.optimizer == "adam":
        yield Unsupported(
            "optimizer", "Its Adam is the fused one of Transformer Engine or Apex where either is installed."
        )
    if job.precision != "fp16" and job.recipe.loss_scale != LossScale():
        yield Unsupported("recipe.loss_scale", "It is for fp16 only, so it is left out.")
    if job.saving.folder is not None and job.saving.asynchronous and job.layout.zero > 1:
        yield Unsupported("saving.asynchronous", "Megatron-FSDP has no asynchronous checkpoints.")
