"""Megatron-DeepSpeed, BigScience's fork, as BLOOM was trained with it: train.sh, ds_config.json, train.slurm.

Flags as in its megatron/arguments.py at 8387ae1 (2023), Apache-2.0.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.export.deepspeed_json import SHARDS_ALREADY, fields_of, half_lost, scale_power, settings, zero_of
from trimaran.export.entries import Constant, Entry, Fields, Given, Line, Shell, Switch, Table, Word, nested, number
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
)
from trimaran.export.slurm import launching
from trimaran.spec import Batch, Job, Mistake, Ramp, presets
from trimaran.spec.model import round_up

TRAINER = "megatron-deepspeed-2022"
CAUSAL, PREFIX = "pretrain_gpt.py", "pretrain_prefix_lm.py"
OURS = ("--deepspeed", "--deepspeed_config", "--zero-stage", "--pp-partition-method", "--embed-layernorm")
VOCABULARY_MULTIPLE = 128
USUAL_INITIAL_SCALE = 2.0**32


def _batch_lines(job: Job) -> list[Line]:
    ramp = job.batch.ramp
    lines = [["--global-batch-size", str(job.batch.size)]]
    if ramp is not None:
        lines.append(["--rampup-batch-size", str(ramp.start), str(ramp.increment), str(ramp.samples)])
    return lines


def read_batch(given: Given) -> Batch | None:
    if "--global-batch-size" not in given:
        return None
    size, words = number(given, "--global-batch-size", int), given.get("--rampup-batch-size", ())
    if not words:
        return Batch.of({"size": size}, "The batch")
    try:
        start, increment, samples = (int(word) for word in words)
    except ValueError:
        raise Mistake(
            f"--rampup-batch-size is {' '.join(words)!r}, but must be START INCREMENT SAMPLES, such as 192 16 9765625."
        ) from None
    return Batch.of({"size": size, "ramp": Ramp(start=start, increment=increment, samples=samples)}, "The batch")


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer has the vocabulary; what it is padded to is said, so that the model has the size it should."""

    flags: tuple[str, ...] = ("--pad-vocab-size-to", "--make-vocab-size-divisible-by")

    def write(self, job: Job) -> list[Line]:
        rows = job.model.vocab_rows(job.layout.tp)
        lines = [["--pad-vocab-size-to", str(rows)]]
        return lines if rows % VOCABULARY_MULTIPLE == 0 else [*lines, ["--make-vocab-size-divisible-by", "1"]]

    def read(self, given: Given) -> Fields:
        if "--padded-vocab-size" in given:  # of a dump
            return {"model.vocab": number(given, "--padded-vocab-size", int)}
        if "--pad-vocab-size-to" not in given:
            return {}
        rows = number(given, "--pad-vocab-size-to", int)
        tp = number(given, "--tensor-model-parallel-size", int) if "--tensor-model-parallel-size" in given else 1
        fixed = {} if round_up(rows, VOCABULARY_MULTIPLE * tp) == rows else {"model.padded_vocab": rows}
        return {"model.vocab": rows, **fixed}


@dataclass(frozen=True)
class Zero:
    flags: tuple[str, ...] = ("--zero-stage",)

    def write(self, job: Job) -> list[Line]:
        return [["--zero-stage", str(written_stage(job))]]

    def read(self, given: Given) -> Fields:
        stage = number(given, "--zero-stage", lambda text: int(float(text))) if "--zero-stage" in given else 1
        return {"layout.zero": zero_of(stage, "bf16" if "--bf16" in given else "fp16")}


@dataclass(frozen=True)
class InitialScale:
    flags: tuple[str, ...] = ("--initial-loss-scale",)

    def write(self, job: Job) -> list[Line]:
        return [["--initial-loss-scale", str(2 ** scale_power(job))]] if job.precision == "fp16" else []

    def read(self, given: Given) -> Fields:
        if "--fp16" not in given:
            return {}
        given_scale = number(given, "--initial-loss-scale", float) if "--initial-loss-scale" in given else None
        return {"recipe.loss_scale.initial": given_scale or USUAL_INITIAL_SCALE}


def written_stage(job: Job) -> int:
    """For bf16 the file must say 0: that optimizer shards by itself."""
    return 0 if job.precision == "bf16" else job.layout.zero


def _gated(job: Job) -> list[Line]:
    return [["--no-bias-gelu-fusion"]] if job.model.mlp == "swiglu" else []


def _positions(job: Job) -> list[Line]:
    """It refuses the flag with rotary positions, and wants it with the others."""
    return [["--max-position-embeddings", str(job.model.seq_len)]] if job.model.position != "rotary" else []


def _own_data(job: Job) -> list[Line]:
    return [["--data-path", Shell('"$DATA_PATH"')]]


POSITIONS = {"learned": "absolute", "alibi": "alibi", "rotary": "rotary"}
SPLITS = {"even": "type:transformer", "weighted": "type:transformer|embedding"}
BLOCKS: dict[str, tuple[Entry, ...]] = {
    "MODEL": (
        *MODEL,
        Constant(_positions, ("--max-position-embeddings",)),
        Word("--position-embedding-type", "model.position", POSITIONS, "absolute"),
        Switch("--embed-layernorm", "model.embedding_norm"),
        Word("--glu-activation", "model.mlp", {"swiglu": "swiglu"}),
        Constant(_gated, ("--no-bias-gelu-fusion",)),
        Vocabulary(),
    ),
    "LAYOUT": (
        *CUT,
        Word("--pp-partition-method", "layout.split", SPLITS),
        Switch(
            "--checkpoint-activations", "layout.recompute", "full", "none", ("--deepspeed-activation-checkpointing",)
        ),
    ),
    "BATCH": (
        BatchOf(("--global-batch-size", "--rampup-batch-size"), _batch_lines, read_batch),
        Steps(read_batch),
    ),
    "OPTIMIZER": (
        *RECIPE,
        Switch("--use-bnb-optimizer", "optimizer", "adam-8bit", "fused-adam"),
        *PRECISION,
        InitialScale(),
    ),
    "DATA": (
        DataPaths(_own_data),
        Split(),
        Switch("--reset-attention-mask", "data.documents", "apart", others=("--reset-position-ids",)),
        Switch("--loss-on-targets-only", "data.loss_on", "targets", wanted=lambda job: job.model.objective == "prefix"),
        Constant(
            lambda job: [
                ["--tokenizer-type", "PretrainedFromHF"],
                ["--tokenizer-name-or-path", Shell('"$TOKENIZER"')],
                ["--data-impl", "mmap"],
            ],
            ("--tokenizer-type", "--tokenizer-name-or-path", "--data-impl"),
        ),
    ),
    "OUTPUT": (
        Checkpoints(),
        Evaluation(read_batch, default_interval=1000),
        Constant(lambda job: [["--log-interval", "1"]], ("--log-interval",)),
    ),
    "DEEPSPEED": (
        Constant(
            lambda job: [["--deepspeed"], ["--deepspeed_config", Shell('"$HERE/ds_config.json"')]],
            ("--deepspeed", "--deepspeed_config"),
        ),
        Zero(),
    ),
}
TABLE = Table(BLOCKS, frozenset({"--sync-tp-duplicated-parameters", "--padded-vocab-size"}))


def to_megatron_deepspeed(job: Job) -> Exported:
    job, cannot = fitted(job, presets.trainer(TRAINER))
    cannot += _lost(job)
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
    what = f"{job.cluster.devices} devices of {job.cluster.name} with Megatron-DeepSpeed"
    script = launch_script(job, what, entry, TABLE.lines(job), site, [])
    document = json.dumps(settings(job, written_stage(job)), indent=2) + "\n"
    files = {"train.sh": script, "ds_config.json": document, "train.slurm": launching(job, "train.sh")}
    return Exported(files, tuple(cannot))


def from_megatron_deepspeed(found: Launched) -> Found:
    # DeepSpeed's own file, where the script writes one, has the last word on what both say; not on the batch's cut.
    written: Fields = {}
    for document in found.documents:
        written = {path: value for path, value in fields_of(document).items() if path == "recipe.clip"}
    values = nested({**found.stated, **TABLE.fields(found.given), **written})
    if found.entry == PREFIX:
        values.setdefault("model", {})["objective"] = "prefix"
        data = values.setdefault("data", {})
        data["prefix"] = "document" if data.get("documents") == "apart" else "row"
        data.setdefault("loss_on", "all")
    return Found(values, TRAINER, found.unread(TABLE))


def is_megatron_deepspeed(found: Launched) -> bool:
    return any(flag in found.given or flag in found.unsure for flag in OURS)


def _split(job: Job) -> str:
    if isinstance(job.layout.split, str):
        return job.layout.split
    return "weighted" if job.model.layers % job.layout.pp else "even"


def _lost(job: Job) -> Iterator[Cannot]:
    model, data, layout = job.model, job.data, job.layout
    yield from lost_in_megatron(job)
    yield from half_lost(job)
    yield from environment_lost(job)
    if layout.zero > 1:
        why = f"Its models are always a pipeline of DeepSpeed's, which refuses ZeRO {layout.zero}; 1 is used instead."
        yield Cannot("layout.zero", why)
    elif layout.zero == 0 and job.precision == "bf16":
        yield Cannot("layout.zero", SHARDS_ALREADY)
    if not isinstance(layout.split, str):
        yield Cannot("layout.split", f"It takes no list of layers; its {_split(job)} split is used instead.")
    why = f"The tokenizer has it: TOKENIZER must name one with {model.vocab} tokens. The model is padded to its size."
    yield Cannot("model.vocab", why)
    if model.padded_vocab is not None:
        yield Cannot("model.padded_vocab", "It is given as the padded size, which is read back as the vocabulary.")
    if model.kv_heads != model.heads:
        why = f"It has no grouped attention; every one of the {model.heads} heads has keys and values of its own."
        yield Cannot("model.kv_heads", why)
    if model.norm != "layernorm":
        yield Cannot("model.norm", "It has no RMSNorm; LayerNorm is used instead.")
    if not model.bias:
        yield Cannot("model.bias", "Its linear layers always have biases.")
    if not model.tied_embeddings:
        yield Cannot("model.tied_embeddings", "Its logits always use the word embedding's matrix.")
    if model.rotary_base != 10000.0:
        yield Cannot("model.rotary_base", "Its rotary angles have the base 10000.")
    if data.source == "synthetic":
        yield Cannot("data.source", "It makes up no data: set DATA_PATH to the prefix of a .bin and .idx file.")
    if model.objective == "causal" and (data.prefix, data.loss_on) != ("row", "targets"):
        yield Cannot("data.prefix", "Prefixes are for prefix-LMs only; there are none.")
        yield Cannot("data.loss_on", "Prefixes are for prefix-LMs only; every token counts.")
    if model.objective == "prefix" and data.prefix == "row" and data.documents == "apart":
        yield Cannot("data.prefix", "With documents apart it draws a prefix for every document.")
    if job.optimizer == "adam":
        yield Cannot("optimizer", "Its Adam is always Apex's fused one.")
    if job.saving.asynchronous:
        yield Cannot("saving.asynchronous", "It waits until a checkpoint is written.")
