"""Megatron-DeepSpeed, BigScience's fork, as BLOOM was trained with it: train.sh, ds_config.json, train.slurm.

Flags as in its megatron/arguments.py at 8387ae1 (2023), Apache-2.0.
"""

import json
from collections.abc import Iterator

from trimaran.export import deepspeed_json
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
    Unquoted,
    nest,
    number,
)
from trimaran.export.launch_command import LaunchCommand
from trimaran.export.launch_script import launch_script, slurm_script, unsupported_environment
from trimaran.export.megatron_batch import BatchFlags, EvaluationFlags, TrainingLength, ramp_up_lines, read_ramp_up
from trimaran.export.partial_job import PartialJob
from trimaran.spec import Job, presets
from trimaran.spec.model import round_up

TRAINER = "megatron-deepspeed-2022"
CAUSAL, PREFIX = "pretrain_gpt.py", "pretrain_prefix_lm.py"
OWN_FLAGS = (  # which Megatron-LM does not have
    "--deepspeed",
    "--deepspeed_config",
    "--zero-stage",
    "--pp-partition-method",
    "--embed-layernorm",
)
VOCABULARY_MULTIPLE = 128
DEFAULT_INITIAL_SCALE = 2.0**32


class PaddedVocabulary:
    """The vocabulary is the tokenizer's; the padded size is given, so that the embedding has the Job's size."""

    flags = ("--pad-vocab-size-to", "--make-vocab-size-divisible-by")

    def write(self, job: Job) -> list[Line]:
        rows = job.model.vocab_rows(job.layout.tp)
        lines = [["--pad-vocab-size-to", str(rows)]]
        return lines if rows % VOCABULARY_MULTIPLE == 0 else [*lines, ["--make-vocab-size-divisible-by", "1"]]

    def read(self, given: Given) -> Fields:
        if "--padded-vocab-size" in given:  # in an argument dump
            return {"model.vocab": number(given, "--padded-vocab-size", int)}
        if "--pad-vocab-size-to" not in given:
            return {}
        rows = number(given, "--pad-vocab-size-to", int)
        tp = number(given, "--tensor-model-parallel-size", int, 1)
        fixed = {} if round_up(rows, VOCABULARY_MULTIPLE * tp) == rows else {"model.padded_vocab": rows}
        return {"model.vocab": rows, **fixed}


class DeepSpeedZero:
    flags = ("--zero-stage",)

    def write(self, job: Job) -> list[Line]:
        return [["--zero-stage", str(written_stage(job))]]

    def read(self, given: Given) -> Fields:
        stage = number(given, "--zero-stage", lambda text: int(float(text)), 1)
        return {"layout.zero": deepspeed_json.zero_of(stage, "bf16" if "--bf16" in given else "fp16")}


class InitialLossScale:
    flags = ("--initial-loss-scale",)

    def write(self, job: Job) -> list[Line]:
        return [["--initial-loss-scale", str(2 ** deepspeed_json.scale_power(job))]] if job.precision == "fp16" else []

    def read(self, given: Given) -> Fields:
        if "--fp16" not in given:
            return {}
        return {"recipe.loss_scale.initial": number(given, "--initial-loss-scale", float) or DEFAULT_INITIAL_SCALE}


def written_stage(job: Job) -> int:
    """For bf16 the file must state 0: DeepSpeed's bf16 optimizer always shards its states."""
    return 0 if job.precision == "bf16" else job.layout.zero


POSITIONS = {"learned": "absolute", "alibi": "alibi", "rotary": "rotary"}
SPLITS = {"even": "type:transformer", "weighted": "type:transformer|embedding"}
BLOCKS: dict[str, tuple[Flags, ...]] = {
    "MODEL": (
        *common.MODEL,
        # Required, except with rotary positions, where it is refused.
        common.MaxPositionEmbeddings(lambda job: job.model.position != "rotary"),
        ChoiceFlag("--position-embedding-type", "model.position", POSITIONS, "absolute"),
        SwitchFlag("--embed-layernorm", "model.embedding_norm"),
        ChoiceFlag("--glu-activation", "model.mlp", {"swiglu": "swiglu"}),
        FixedFlags([["--no-bias-gelu-fusion"]], lambda job: job.model.mlp == "swiglu"),
        PaddedVocabulary(),
    ),
    "LAYOUT": (
        *common.PARALLELISM,
        ChoiceFlag("--pp-partition-method", "layout.split", SPLITS),
        SwitchFlag(
            "--checkpoint-activations", "layout.recompute", "full", "none", ("--deepspeed-activation-checkpointing",)
        ),
    ),
    "BATCH": (
        BatchFlags(("--global-batch-size", "--rampup-batch-size"), ramp_up_lines, read_ramp_up),
        TrainingLength(read_ramp_up),
    ),
    "OPTIMIZER": (
        *common.RECIPE,
        SwitchFlag("--use-bnb-optimizer", "optimizer", "adam-8bit", "fused-adam"),
        *common.PRECISION,
        InitialLossScale(),
    ),
    "DATA": (
        common.DataPaths(["--data-path", Unquoted('"$DATA_PATH"')]),
        common.DataSplit(),
        SwitchFlag("--reset-attention-mask", "data.documents", "apart", others=("--reset-position-ids",)),
        SwitchFlag(
            "--loss-on-targets-only", "data.loss_on", "targets", wanted=lambda job: job.model.objective == "prefix"
        ),
        FixedFlags(
            [
                ["--tokenizer-type", "PretrainedFromHF"],
                ["--tokenizer-name-or-path", Unquoted('"$TOKENIZER"')],
                ["--data-impl", "mmap"],
            ]
        ),
    ),
    "OUTPUT": (
        common.CheckpointFlags(),
        EvaluationFlags(read_ramp_up, default_interval=1000),
        FixedFlags([["--log-interval", "1"]]),
    ),
    "DEEPSPEED": (
        FixedFlags([["--deepspeed"], ["--deepspeed_config", Unquoted('"$HERE/ds_config.json"')]]),
        DeepSpeedZero(),
    ),
}
TABLE = FlagTable(BLOCKS, frozenset({"--sync-tp-duplicated-parameters", "--padded-vocab-size"}))


def to_megatron_deepspeed(job: Job) -> LaunchFiles:
    job, unsupported = adapt_job(job, presets.trainer(TRAINER))
    unsupported += [Unsupported(*reason) for reason in _unsupported(job)]
    layout = {"zero": min(job.layout.zero, 1), "split": _split(job)}
    job = job.replace(layout={**job.layout.model_dump(), **layout})
    site = [
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        'MEGATRON="${MEGATRON:-.}" # a checkout of bigscience-workshop/Megatron-DeepSpeed',
        f'TOKENIZER="${{TOKENIZER:?set it to a Hugging Face tokenizer with {job.model.vocab} tokens}}"',
    ]
    if job.data.source == "synthetic":
        site.append('DATA_PATH="${DATA_PATH:?set it to the prefix of a .bin and .idx file}"')
    entry = PREFIX if job.model.objective == "prefix" else CAUSAL
    script = launch_script(job, "Megatron-DeepSpeed", entry, TABLE.lines(job), site, [])
    document = json.dumps(deepspeed_json.settings(job, written_stage(job)), indent=2) + "\n"
    files = {"train.sh": script, "ds_config.json": document, "train.slurm": slurm_script(job, "train.sh")}
    return LaunchFiles(files, tuple(unsupported))


def from_megatron_deepspeed(command: LaunchCommand) -> PartialJob:
    # Gradient clipping of DeepSpeed's own file, where the script writes one, overrides the flag.
    from_file: Fields = {}
    for document in command.documents:
        from_file = {path: value for path, value in deepspeed_json.fields_of(document).items() if path == "recipe.clip"}
    values = nest({**command.stated, **TABLE.fields(command.given), **from_file})
    if command.program == PREFIX:
        values.setdefault("model", {})["objective"] = "prefix"
        data = values.setdefault("data", {})
        data["prefix"] = "document" if data.get("documents") == "apart" else "row"
        data.setdefault("loss_on", "all")
    return PartialJob(values, TRAINER, command.unread(TABLE))


def is_megatron_deepspeed(command: LaunchCommand) -> bool:
    return any(flag in command.given or flag in command.unsure for flag in OWN_FLAGS)


def _split(job: Job) -> str:
    if isinstance(job.layout.split, str):
        return job.layout.split
    return "weighted" if job.model.layers % job.layout.pp else "even"


def _unsupported(job: Job) -> Iterator[Reason]:
    model, data, layout = job.model, job.data, job.layout
    yield from common.unsupported_by_megatron(job)
    yield from deepspeed_json.unsupported_loss_scale(job)
    yield from unsupported_environment(job)
    if layout.zero > 1:
        why = f"Its models are always DeepSpeed pipelines, which refuse ZeRO {layout.zero}; 1 is used instead."
        yield "layout.zero", why
    elif layout.zero == 0 and job.precision == "bf16":
        yield "layout.zero", deepspeed_json.SHARDS_ALREADY
    if not isinstance(layout.split, str):
        yield "layout.split", f"It takes no list of layers; its {_split(job)} split is used instead."
    why = f"It is the tokenizer's: TOKENIZER must name one with {model.vocab} tokens. The embedding is padded to size."
    yield "model.vocab", why
    if model.padded_vocab is not None:
        yield "model.padded_vocab", "Only the padded size is written, which is read back as the vocabulary."
    if model.kv_heads != model.heads:
        why = f"It has no grouped-query attention; each of the {model.heads} heads has its own keys and values."
        yield "model.kv_heads", why
    if model.norm != "layernorm":
        yield "model.norm", "It has no RMSNorm; LayerNorm is used instead."
    if not model.bias:
        yield "model.bias", "Its linear layers always have biases."
    if not model.tied_embeddings:
        yield "model.tied_embeddings", "Its output layer always shares the word embedding."
    if model.rotary_base != 10000.0:
        yield "model.rotary_base", "Its rotary base is 10000."
    if data.source == "synthetic":
        yield "data.source", "It has no synthetic data: set DATA_PATH to the prefix of a .bin and .idx file."
    if model.objective == "causal" and (data.prefix, data.loss_on) != ("row", "targets"):
        yield "data.prefix", "Only prefix-LMs have prefixes; there are none."
        yield "data.loss_on", "Only prefix-LMs have prefixes; the loss is over all tokens."
    if model.objective == "prefix" and data.prefix == "row" and data.documents == "apart":
        yield "data.prefix", "With documents apart it draws a prefix in each document."
    if job.optimizer == "adam":
        yield "optimizer", "Its Adam is always Apex's fused one."
    if job.saving.asynchronous:
        yield "saving.asynchronous", "It has no asynchronous checkpoints."
