"""Megatron-LM of today: train.sh and train.slurm.

Flags as in its megatron/training/arguments.py at d98e8a6 (August 2026). It accepts --rampup-batch-size and ignores it;
--step-batch-size-schedule says the same step by step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.export.batch_steps import batch_lines, ramps, read_batch
from trimaran.export.entries import Constant, Entry, Fields, Given, Line, Switch, Table, Value, Word, nested, number
from trimaran.export.exported import Cannot, Exported
from trimaran.export.fitting import fitted
from trimaran.export.found import Found
from trimaran.export.launch import environment_lost, launch_script
from trimaran.export.launched import Launched
from trimaran.export.lost import lost_in_megatron
from trimaran.export.megatron_flags import (
    CUT,
    MODEL,
    PRECISION,
    RECIPE,
    BatchOf,
    Checkpoints,
    DataPaths,
    Evaluation,
    Split,
    Steps,
    in_half,
)
from trimaran.export.pipeline_stages import Stages
from trimaran.export.slurm import launching
from trimaran.spec import Job, LossScale, presets

TRAINER = "megatron-lm"
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}


@dataclass(frozen=True)
class GroupedHeads:
    flags: tuple[str, ...] = ("--group-query-attention", "--num-query-groups")

    def write(self, job: Job) -> list[Line]:
        if job.model.kv_heads == job.model.heads:
            return []
        return [["--group-query-attention"], ["--num-query-groups", str(job.model.kv_heads)]]

    def read(self, given: Given) -> Fields:
        grouped = "--group-query-attention" in given and "--num-query-groups" in given
        return {"model.kv_heads": number(given, "--num-query-groups", int)} if grouped else {}


@dataclass(frozen=True)
class Zero:
    """The distributed optimizer is ZeRO 1; Megatron-FSDP is 2 and 3. A reduction that overlaps costs nothing more."""

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
            lines += [["--use-megatron-fsdp"], ["--data-parallel-sharding-strategy", SHARDED[zero]]]
            lines += [["--ckpt-format", "fsdp_dtensor"]]
        return lines

    def read(self, given: Given) -> Fields:
        if "--use-megatron-fsdp" in given or "--use-custom-fsdp" in given:
            strategy = given.get("--data-parallel-sharding-strategy", ["optim_grads_params"])[0]
            stages = {"no_shard": 0, "optim": 1, **{word: stage for stage, word in SHARDED.items()}}
            return {"layout.zero": stages.get(strategy, 3)}
        return {"layout.zero": int("--use-distributed-optimizer" in given)}


@dataclass(frozen=True)
class Recomputing:
    flags: tuple[str, ...] = (
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-activations",
        "--checkpoint-activations",
    )

    def write(self, job: Job) -> list[Line]:
        whole = [
            ["--recompute-granularity", "full"],
            ["--recompute-method", "uniform"],
            ["--recompute-num-layers", "1"],
        ]
        return {"full": whole, "selective": [["--recompute-granularity", "selective"]]}.get(job.layout.recompute, [])

    def read(self, given: Given) -> Fields:
        if "--checkpoint-activations" in given:  # of older versions
            return {"layout.recompute": "full"}
        if "--recompute-activations" in given:
            return {"layout.recompute": "selective"}
        word = given.get("--recompute-granularity", ["none"])[0]
        return {"layout.recompute": word if word in ("full", "selective") else "none"}


def _unfused(job: Job) -> list[Line]:
    """Its fused bias and GELU need a bias."""
    return [["--no-bias-gelu-fusion"]] if job.model.mlp == "gelu" and not job.model.bias else []


def _attention(job: Job) -> list[Line]:
    return [["--attention-backend", "flash"]] if job.precision != "fp32" else []


def _rotary(job: Job) -> bool:
    return job.model.position == "rotary"


@dataclass(frozen=True)
class RotaryBase:
    """A whole number."""

    flags: tuple[str, ...] = ("--rotary-base",)

    def write(self, job: Job) -> list[Line]:
        return [["--rotary-base", str(_rotary_base(job))]] if _rotary(job) else []

    def read(self, given: Given) -> Fields:
        return {"model.rotary_base": number(given, "--rotary-base", float)} if "--rotary-base" in given else {}


def _rotary_base(job: Job) -> int:
    return max(1, round(job.model.rotary_base))


POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
BLOCKS: dict[str, tuple[Entry, ...]] = {
    "MODEL": (
        *MODEL,
        Constant(
            lambda job: [["--max-position-embeddings", str(job.model.seq_len)]],
            ("--max-position-embeddings",),
        ),
        GroupedHeads(),
        Word("--position-embedding-type", "model.position", POSITIONS, "learned_absolute"),
        RotaryBase(),
        Word("--normalization", "model.norm", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}, "LayerNorm"),
        Switch("--swiglu", "model.mlp", "swiglu"),
        Switch("--disable-bias-linear", "model.bias", False, True),
        Constant(_unfused, ("--no-bias-gelu-fusion",)),
        Switch("--untie-embeddings-and-output-weights", "model.tied_embeddings", False),
        Value("--vocab-size", "model.vocab", int),
        Value("--padded-vocab-size", "model.padded_vocab", int),
        Constant(
            lambda job: [["--tokenizer-type", "NullTokenizer"], ["--make-vocab-size-divisible-by", "128"]],
            ("--tokenizer-type", "--make-vocab-size-divisible-by"),
        ),
    ),
    "LAYOUT": (
        *CUT,
        Stages(),
        Switch("--sequence-parallel", "layout.sequence_parallel"),
        Recomputing(),
        Zero(),
        Constant(_attention, ("--attention-backend",)),
    ),
    "BATCH": (
        BatchOf(("--global-batch-size", "--step-batch-size-schedule", "--rampup-batch-size"), batch_lines, read_batch),
        Steps(read_batch),
    ),
    "OPTIMIZER": (
        *RECIPE,
        *PRECISION,
        Value("--initial-loss-scale", "recipe.loss_scale.initial", float, None, in_half),
    ),
    "DATA": (
        DataPaths(lambda job: [["--mock-data"]]),
        Split(lambda job: job.data.source != "synthetic"),
        Switch("--dataloader-inter-document-masking", "data.documents", "apart", others=("--reset-position-ids",)),
    ),
    "OUTPUT": (
        Checkpoints(),
        Switch("--async-save", "saving.asynchronous"),
        Evaluation(read_batch, default_interval=None),
        Constant(
            lambda job: [["--log-interval", "1"], ["--log-throughput"]],
            ("--log-interval", "--log-throughput"),
        ),
    ),
}
READ_ASIDE = ("--use-rotary-position-embeddings", "--reset-attention-mask", "--use-custom-fsdp")
MEANINGLESS = ("--use-mcore-models", "--use-flash-attn", "--transformer-impl")
TABLE = Table(BLOCKS, frozenset((*READ_ASIDE, *MEANINGLESS)))


def to_megatron_lm(job: Job) -> Exported:
    job, cannot = fitted(job, presets.trainer(TRAINER))
    cannot += _lost(job)
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
    return Exported({"train.sh": script, "train.slurm": launching(job, "train.sh")}, tuple(cannot))


def from_megatron_lm(found: Launched) -> Found:
    fields = {**found.stated, **TABLE.fields(found.given)}
    if "--use-rotary-position-embeddings" in found.given:
        fields["model.position"] = "rotary"
    if "--reset-attention-mask" in found.given:
        fields["data.documents"] = "apart"
    if fields.get("model.mlp") == "swiglu" and "model.ffn_hidden" not in fields and "model.hidden" in fields:
        fields["model.ffn_hidden"] = int(4 * fields["model.hidden"] * 2 / 3 / 64) * 64
    if "model.vocab" not in fields and "model.padded_vocab" in fields:  # a tokenizer's, which the file names only
        fields["model.vocab"] = fields.pop("model.padded_vocab")
    fields["optimizer"] = "fused-adam"
    unread = found.unread(TABLE)
    schedule = found.given.get("--step-batch-size-schedule")
    if schedule and "ramp" not in fields.get("batch", {}):  # not in equal steps: only the last batch is taken
        unread += (" ".join(["--step-batch-size-schedule", *schedule]),)
    return Found(nested(fields), TRAINER, unread)


def _lost(job: Job) -> Iterator[Cannot]:
    model, data = job.model, job.data
    yield from lost_in_megatron(job)
    yield from environment_lost(job)
    if model.position == "alibi":
        instead = "rotary" if model.head_dim % 2 == 0 else "learned"
        yield Cannot("model.position", f"It has no ALiBi; {instead} positions are used instead.")
    if model.embedding_norm:
        yield Cannot("model.embedding_norm", "It has no norm after the word embedding; there is none.")
    if model.objective != "causal":
        yield Cannot("model.objective", "It has no prefix-LM; all attention is causal and every token counts.")
    if (data.prefix, data.loss_on) != ("row", "targets"):
        yield Cannot("data.prefix", "It has no prefix-LM, so no prefix is drawn.")
        yield Cannot("data.loss_on", "It has no prefix-LM; every token counts.")
    if model.rotary_base != (_rotary_base(job) if _rotary(job) else 10000.0):
        why = (
            f"It takes a whole number; {_rotary_base(job)} is used instead." if _rotary(job) else "Nothing is rotated."
        )
        yield Cannot("model.rotary_base", why)
    if job.batch.ramp is not None and not ramps(job.batch):
        yield Cannot("batch.ramp", "It starts at the whole batch already, so it is left out.")
    if data.source == "synthetic" and data.validation != type(data)().validation:
        yield Cannot("data.validation", "Made-up data has no documents to keep from training.")
    if job.optimizer == "adam":
        yield Cannot("optimizer", "Its Adam is the fused one of Transformer Engine or Apex where either is installed.")
    if job.precision != "fp16" and job.recipe.loss_scale != LossScale():
        yield Cannot("recipe.loss_scale", "It is for fp16 only, so it is left out.")
    if job.saving.folder is not None and job.saving.asynchronous and job.layout.zero > 1:
        yield Cannot("saving.asynchronous", "With Megatron-FSDP checkpoints are not written in the background.")
