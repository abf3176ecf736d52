"""Megatron-LM: train.sh and train.slurm.

Flags as in its megatron/training/arguments.py at d98e8a6 (August 2026).
"""

from collections.abc import Iterator

from trimaran.export import megatron_batch
from trimaran.export import megatron_flags as common
from trimaran.export.adapt import LaunchFiles, Reason, Unsupported, adapt_job
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
    nest,
    number,
)
from trimaran.export.launch_command import LaunchCommand
from trimaran.export.launch_script import launch_script, slurm_script, unsupported_environment
from trimaran.export.partial_job import PartialJob
from trimaran.export.pipeline_stages import PipelineSplitFlags
from trimaran.spec import Job, LossScale, Model, presets

TRAINER = "megatron-lm"
SHARDING_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


class GroupedQueryAttention:
    flags = ("--group-query-attention", "--num-query-groups")

    def write(self, job: Job) -> list[Line]:
        if job.model.kv_heads == job.model.heads:
            return []
        return [["--group-query-attention"], ["--num-query-groups", str(job.model.kv_heads)]]

    def read(self, given: Given) -> Fields:
        grouped = "--group-query-attention" in given and "--num-query-groups" in given
        return {"model.kv_heads": number(given, "--num-query-groups", int)} if grouped else {}


class ShardingFlags:
    """The distributed optimizer is ZeRO 1; Megatron-FSDP is 2 and 3."""

    flags = (
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
            strategy = (given.get("--data-parallel-sharding-strategy") or ["optim_grads_params"])[0]
            stages = {"no_shard": 0, "optim": 1, **{word: stage for stage, word in SHARDING_STRATEGIES.items()}}
            return {"layout.zero": stages.get(strategy, 3)}
        return {"layout.zero": int("--use-distributed-optimizer" in given)}


class RecomputeFlags:
    flags = (
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
        granularity = (given.get("--recompute-granularity") or ["none"])[0]
        return {"layout.recompute": granularity if granularity in ("full", "selective") else "none"}


def _is_rotary(job: Job) -> bool:
    return job.model.position == "rotary"


class RotaryBase:
    """An integer."""

    flags = ("--rotary-base",)

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
        *common.MODEL,
        common.MaxPositionEmbeddings(),
        GroupedQueryAttention(),
        ChoiceFlag("--position-embedding-type", "model.position", POSITIONS, "learned_absolute"),
        RotaryBase(),
        ChoiceFlag("--normalization", "model.norm", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}, "LayerNorm"),
        SwitchFlag("--swiglu", "model.mlp", "swiglu"),
        SwitchFlag("--disable-bias-linear", "model.bias", False, True),
        # The fused bias-GELU kernel needs a bias.
        FixedFlags([["--no-bias-gelu-fusion"]], lambda job: job.model.mlp == "gelu" and not job.model.bias),
        SwitchFlag("--untie-embeddings-and-output-weights", "model.tied_embeddings", False),
        ValueFlag("--vocab-size", "model.vocab", int),
        ValueFlag("--padded-vocab-size", "model.padded_vocab", int),
        FixedFlags([["--tokenizer-type", "NullTokenizer"], ["--make-vocab-size-divisible-by", "128"]]),
    ),
    "LAYOUT": (
        *common.PARALLELISM,
        PipelineSplitFlags(),
        SwitchFlag("--sequence-parallel", "layout.sequence_parallel"),
        RecomputeFlags(),
        ShardingFlags(),
        FixedFlags([["--attention-backend", "flash"]], lambda job: job.precision != "fp32"),
    ),
    "BATCH": (
        megatron_batch.BatchFlags(
            ("--global-batch-size", "--step-batch-size-schedule", "--rampup-batch-size"),
            megatron_batch.schedule_lines,
            megatron_batch.read_schedule,
        ),
        megatron_batch.TrainingLength(megatron_batch.read_schedule),
    ),
    "OPTIMIZER": (
        *common.RECIPE,
        *common.PRECISION,
        ValueFlag("--initial-loss-scale", "recipe.loss_scale.initial", float, None, common.is_fp16),
    ),
    "DATA": (
        common.DataPaths(["--mock-data"]),
        common.DataSplit(lambda job: job.data.source != "synthetic"),
        SwitchFlag("--dataloader-inter-document-masking", "data.documents", "apart", others=("--reset-position-ids",)),
    ),
    "OUTPUT": (
        common.CheckpointFlags(),
        SwitchFlag("--async-save", "saving.asynchronous"),
        megatron_batch.EvaluationFlags(megatron_batch.read_schedule, default_interval=None),
        FixedFlags([["--log-interval", "1"], ["--log-throughput"]]),
    ),
}
READ_BELOW = ("--use-rotary-position-embeddings", "--reset-attention-mask", "--use-custom-fsdp")
WITHOUT_EFFECT = ("--use-mcore-models", "--use-flash-attn", "--transformer-impl")
TABLE = FlagTable(BLOCKS, frozenset((*READ_BELOW, *WITHOUT_EFFECT)))


def to_megatron_lm(job: Job) -> LaunchFiles:
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    unsupported += [Unsupported(*reason) for reason in _unsupported(job)]
    if job.model.position == "alibi":
        job = job.replace(model=job.model.replace(position=_instead_of_alibi(job.model)).model_dump())
    site = ['MEGATRON="${MEGATRON:-.}" # a checkout of NVIDIA/Megatron-LM']
    # Tensor parallelism needs one connection (until Blackwell), Megatron-FSDP more.
    one = 'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'
    exports = [one] if job.layout.zero < 2 and "CUDA_DEVICE_MAX_CONNECTIONS" not in job.environment else []
    script = launch_script(job, "Megatron-LM", "pretrain_gpt.py", TABLE.lines(job), site, exports)
    return LaunchFiles({"train.sh": script, "train.slurm": slurm_script(job, "train.sh")}, tuple(unsupported))


def _instead_of_alibi(model: Model) -> str:
    return "rotary" if model.head_dim % 2 == 0 else "learned"


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
        unread += (" ".join(["--step-batch-size-schedule", *schedule]),)
    return PartialJob(nest(fields), TRAINER, unread)


def _unsupported(job: Job) -> Iterator[Reason]:
    model, data = job.model, job.data
    yield from common.unsupported_by_megatron(job)
    yield from unsupported_environment(job)
    if model.position == "alibi":
        yield "model.position", f"It has no ALiBi; {_instead_of_alibi(model)} positions are used instead."
    if model.embedding_norm:
        yield "model.embedding_norm", "It has no norm after the word embedding; it is left out."
    if model.objective != "causal":
        yield "model.objective", "It has no prefix-LM; attention is causal and the loss is over all tokens."
    if (data.prefix, data.loss_on) != ("row", "targets"):
        yield "data.prefix", "It has no prefix-LM, so no prefix is drawn."
        yield "data.loss_on", "It has no prefix-LM; the loss is over all tokens."
    if _is_rotary(job) and model.rotary_base != _rotary_base(job):
        yield "model.rotary_base", f"It takes an integer; {_rotary_base(job)} is used instead."
    elif not _is_rotary(job) and model.rotary_base != 10000.0:
        yield "model.rotary_base", "There are no rotary positions."
    if job.batch.ramp is not None and not megatron_batch.has_ramp_up(job.batch):
        yield "batch.ramp", "It starts at the full batch, so it is left out."
    if data.source == "synthetic" and data.validation != type(data)().validation:
        yield "data.validation", "Synthetic data has no documents to hold out."
    if job.optimizer == "adam":
        yield "optimizer", "Its Adam is the fused one of Transformer Engine or Apex where either is installed."
    if job.precision != "fp16" and job.recipe.loss_scale != LossScale():
        yield "recipe.loss_scale", "It is for fp16 only, so it is left out."
    if job.saving.folder is not None and job.saving.asynchronous and job.layout.zero > 1:
        yield "saving.asynchronous", "Megatron-FSDP has no asynchronous checkpoints."
