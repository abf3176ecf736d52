"""The flags that both Megatrons have: entries of several flags, the tables that both share, and what neither offers.

This is the one place that names them: the ledger's readers of logs and notes look names up here. The flags of only one
fork are in megatron_deepspeed.py and megatron_lm.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trimaran.export.adapt import Reason
from trimaran.export.flags import ChoiceFlag, Fields, FixedFlags, Flags, Given, Line, ValueFlag, always, number
from trimaran.export.megatron_batch import evaluation_steps
from trimaran.spec import Job, Mistake, Validation


@dataclass(frozen=True)
class MaxPositionEmbeddings:
    """Nothing is read from it: a Job has no positions beyond its sequence length."""

    wanted: Callable[[Job], bool] = always
    flags: tuple[str, ...] = ("--max-position-embeddings",)

    def write(self, job: Job) -> list[Line]:
        return [["--max-position-embeddings", str(job.model.seq_len)]] if self.wanted(job) else []

    def read(self, given: Given) -> Fields:
        return {}


class AdamBetas:
    flags = ("--adam-beta1", "--adam-beta2")

    def write(self, job: Job) -> list[Line]:
        return [[flag, str(beta)] for flag, beta in zip(self.flags, job.recipe.betas, strict=True)]

    def read(self, given: Given) -> Fields:
        first, second = self.flags
        return {"recipe.betas": (number(given, first, float, 0.9), number(given, second, float, 0.999))}


class GradientClipping:
    """0 where gradients are not clipped."""

    flags = ("--clip-grad",)

    def write(self, job: Job) -> list[Line]:
        return [["--clip-grad", str(job.recipe.clip or 0.0)]]

    def read(self, given: Given) -> Fields:
        return {"recipe.clip": number(given, "--clip-grad", float, 1.0) or None}


@dataclass(frozen=True)
class DataPaths:
    """--data-path PREFIX, or WEIGHT PREFIX WEIGHT PREFIX …"""

    synthetic: Line  # what the trainer is given instead of synthetic data
    flags: tuple[str, ...] = ("--data-path", "--mock-data")

    def write(self, job: Job) -> list[Line]:
        source = job.data.source
        if source == "synthetic":
            return [self.synthetic]
        if isinstance(source, str):
            return [["--data-path", path_word(source)]]
        return [["--data-path", *(word for path, weight in source.items() for word in (str(weight), path_word(path)))]]

    def read(self, given: Given) -> Fields:
        words = given.get("--data-path", ())
        if "--mock-data" in given:
            return {"data.source": "synthetic"}
        if len(words) < 2:
            return {"data.source": words[0]} if words else {}
        try:
            return {"data.source": dict(zip(words[1::2], map(float, words[::2]), strict=True))}
        except ValueError:
            text = " ".join(words)
            raise Mistake(f"--data-path {text} is neither one path nor weights with paths: WEIGHT PATH …") from None


def path_word(path: str) -> str:
    """A path that begins with a dash would be parsed as a flag."""
    return f"./{path}" if path.startswith("-") else path


@dataclass(frozen=True)
class DataSplit:
    """--split 0.99,0.01,0: shares for training, validation and test."""

    wanted: Callable[[Job], bool] = always
    flags: tuple[str, ...] = ("--split",)

    def write(self, job: Job) -> list[Line]:
        kept = job.data.validation
        return [["--split", f"{1 - kept!r},{kept!r},0"]] if self.wanted(job) else []

    def read(self, given: Given) -> Fields:
        if not given.get("--split"):
            return {}
        try:
            shares = [float(share) for share in given["--split"][0].replace("/", ",").split(",")]
            total = sum(shares)
            kept = shares[1] if abs(total - 1) < 1e-9 else shares[1] / total
        except (ValueError, ZeroDivisionError, IndexError):
            raise Mistake(f"--split is {given['--split'][0]!r}, but must be shares such as 969,30,1.") from None
        return {"data.validation": kept}


class CheckpointFlags:
    flags = ("--save", "--load", "--save-interval")

    def write(self, job: Job) -> list[Line]:
        folder = job.saving.folder
        if folder is None:
            return []
        word = path_word(folder)
        return [["--save", word], ["--load", word], ["--save-interval", str(job.saving.every or job.steps)]]

    def read(self, given: Given) -> Fields:
        fields: Fields = {}
        if given.get("--save"):
            fields["saving.folder"] = given["--save"][0]
        if "--save-interval" in given and (given.get("--save") or given.get("--load")):
            fields["saving.every"] = number(given, "--save-interval", int)
        return fields


class PrecisionFlags:
    """--bf16 or --fp16, neither for fp32; --fp8-format beside --bf16."""

    flags = ("--bf16", "--fp16", "--fp8-format")

    def write(self, job: Job) -> list[Line]:
        lines = {"bf16": [["--bf16"]], "fp16": [["--fp16"]], "fp8": [["--bf16"], ["--fp8-format", "hybrid"]]}
        return lines.get(job.precision, [])

    def read(self, given: Given) -> Fields:
        named = {"--fp8-format": "fp8", "--bf16": "bf16", "--fp16": "fp16"}
        return {"precision": next((value for flag, value in named.items() if flag in given), "fp32")}


def is_fp16(job: Job) -> bool:
    return job.precision == "fp16"


MODEL: tuple[Flags, ...] = (
    ValueFlag("--num-layers", "model.layers", int),
    ValueFlag("--hidden-size", "model.hidden", int),
    ValueFlag("--ffn-hidden-size", "model.ffn_hidden", int),
    ValueFlag("--num-attention-heads", "model.heads", int),
    ValueFlag("--seq-length", "model.seq_len", int),
    # Our Jobs have no dropout, and Megatron's default is a tenth.
    FixedFlags([["--attention-dropout", "0.0"], ["--hidden-dropout", "0.0"]]),
)
PARALLELISM: tuple[Flags, ...] = (
    ValueFlag("--tensor-model-parallel-size", "layout.tp", int, 1),
    ValueFlag("--pipeline-model-parallel-size", "layout.pp", int, 1),
    ValueFlag("--micro-batch-size", "layout.micro_batch", int),
)
RECIPE: tuple[Flags, ...] = (
    ChoiceFlag("--optimizer", "optimizer", dict.fromkeys(("adam", "adam-8bit", "fused-adam"), "adam")),
    ValueFlag("--lr", "recipe.learning_rate", float),
    ValueFlag("--min-lr", "recipe.minimum_learning_rate", float, 0.0),
    ChoiceFlag("--lr-decay-style", "recipe.schedule", {w: w for w in ("constant", "linear", "cosine")}, "linear"),
    ValueFlag("--lr-warmup-samples", "recipe.warmup_samples", int),
    ValueFlag("--lr-decay-samples", "recipe.decay_samples", int),
    AdamBetas(),
    ValueFlag("--adam-eps", "recipe.eps", float, 1e-8),
    ValueFlag("--weight-decay", "recipe.weight_decay", float, 0.01),
    GradientClipping(),
    ValueFlag("--seed", "seed", int, 1234),
)
PRECISION: tuple[Flags, ...] = (
    PrecisionFlags(),
    ValueFlag("--loss-scale-window", "recipe.loss_scale.window", lambda text: int(float(text)), 1000, is_fp16),
    ValueFlag("--hysteresis", "recipe.loss_scale.hysteresis", int, 2, is_fp16),
    ValueFlag("--min-loss-scale", "recipe.loss_scale.minimum", float, 1.0, is_fp16),
)


def unsupported_by_megatron(job: Job) -> Iterator[Reason]:
    saving, validation, recipe = job.saving, job.validation, job.recipe
    if saving.folder is None and saving != type(saving)():
        yield "saving", "Without a folder there are no checkpoints, so this is left out."
    if saving.folder is not None:
        yield "saving.keep", "It keeps every checkpoint; remove old ones yourself."
        if saving.every is None:
            yield "saving.every", f"It needs an interval; {job.steps}, the whole run, is used instead."
        if saving.minutes is not None:
            yield "saving.minutes", "It counts iterations, not minutes, between two checkpoints."
        if saving.folder.startswith("-"):
            yield "saving.folder", f"A leading dash would be parsed as a flag; ./{saving.folder} is written instead."
    if validation.every is None and validation.samples != Validation().samples:
        yield "validation.samples", "There is no evaluation, so this is left out."
    if validation.every is not None and validation.samples % job.batch.size:
        rounds = evaluation_steps(job)
        why = f"It evaluates whole batches; {rounds} of {job.batch.size} samples are used instead."
        yield "validation.samples", why
    if set(recipe.undecayed) != {"norms", "biases"}:
        yield "recipe.undecayed", "It exempts norms and biases from weight decay, and nothing else."
    elif recipe.undecayed != type(recipe)().undecayed:
        yield "recipe.undecayed", "Norms and biases are exempt from weight decay, in whatever order."
    sources = [job.data.source] if isinstance(job.data.source, str) else list(job.data.source)
    if any(path.startswith("-") for path in sources):
        yield "data.source", "A leading dash would be parsed as a flag; ./ is written before it."
