"""What the flags mean that both Megatrons have: the entries with several flags, and the tables both share.

What is one fork's alone is in megatron_deepspeed.py and megatron_lm.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trimaran.export.entries import Constant, Entry, Fields, Given, Line, Value, Word, always, number
from trimaran.spec import Batch, Job, Mistake


@dataclass(frozen=True)
class Betas:
    flags: tuple[str, ...] = ("--adam-beta1", "--adam-beta2")

    def write(self, job: Job) -> list[Line]:
        return [[flag, str(beta)] for flag, beta in zip(self.flags, job.recipe.betas, strict=True)]

    def read(self, given: Given) -> Fields:
        defaults = (0.9, 0.999)
        betas = [
            number(given, flag, float) if flag in given else default
            for flag, default in zip(self.flags, defaults, strict=True)
        ]
        return {"recipe.betas": tuple(betas)}


@dataclass(frozen=True)
class Clip:
    """Megatron says 0 where nothing is clipped."""

    flags: tuple[str, ...] = ("--clip-grad",)

    def write(self, job: Job) -> list[Line]:
        return [["--clip-grad", str(job.recipe.clip or 0.0)]]

    def read(self, given: Given) -> Fields:
        clip = number(given, "--clip-grad", float) if "--clip-grad" in given else 1.0
        return {"recipe.clip": clip or None}


@dataclass(frozen=True)
class DataPaths:
    """--data-path PREFIX, or WEIGHT PREFIX WEIGHT PREFIX …; `made_up` is how a trainer says 'synthetic'."""

    made_up: Callable[[Job], list[Line]]
    flags: tuple[str, ...] = ("--data-path", "--mock-data")

    def write(self, job: Job) -> list[Line]:
        source = job.data.source
        if source == "synthetic":
            return self.made_up(job)
        if isinstance(source, str):
            return [["--data-path", path_word(source)]]
        return [["--data-path", *(word for path, weight in source.items() for word in (str(weight), path_word(path)))]]

    def read(self, given: Given) -> Fields:
        words = list(given.get("--data-path", ()))
        if "--mock-data" in given:
            return {"data.source": "synthetic"}
        if len(words) == 1:
            return {"data.source": words[0]}
        if words:
            try:
                return {"data.source": dict(zip(words[1::2], map(float, words[::2]), strict=True))}
            except ValueError:
                raise Mistake(
                    f"--data-path {' '.join(words)} is neither one path nor weights with paths: WEIGHT PATH …"
                ) from None
        return {}


def path_word(path: str) -> str:
    """A path that begins with a dash would be taken for a flag."""
    return f"./{path}" if path.startswith("-") else path


@dataclass(frozen=True)
class Split:
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
            whole = sum(shares)
            kept = shares[1] if abs(whole - 1) < 1e-9 else shares[1] / whole
        except (ValueError, ZeroDivisionError, IndexError):
            raise Mistake(f"--split is {given['--split'][0]!r}, but must be shares such as 969,30,1.") from None
        return {"data.validation": kept}


@dataclass(frozen=True)
class Checkpoints:
    flags: tuple[str, ...] = ("--save", "--load", "--save-interval")

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


@dataclass(frozen=True)
class BatchOf:
    """The global batch and its ramp-up, which the forks say differently; `read_batch` knows how."""

    flags: tuple[str, ...]
    lines: Callable[[Job], list[Line]]
    read_batch: Callable[[Given], Batch | None]

    def write(self, job: Job) -> list[Line]:
        return self.lines(job)

    def read(self, given: Given) -> Fields:
        batch = self.read_batch(given)
        return {} if batch is None else {"batch": batch.model_dump(exclude_none=True)}


@dataclass(frozen=True)
class Steps:
    """Megatron counts samples where a batch ramps up; --train-iters and the like are read too."""

    read_batch: Callable[[Given], Batch | None]
    flags: tuple[str, ...] = ("--train-samples", "--train-iters", "--lr-warmup-iters", "--lr-decay-iters")

    def write(self, job: Job) -> list[Line]:
        return [["--train-samples", str(job.samples)]]

    def read(self, given: Given) -> Fields:
        batch, fields = self.read_batch(given), Fields()
        if "--train-iters" in given:
            fields["steps"] = number(given, "--train-iters", int)
        elif "--train-samples" in given and batch is not None:
            fields["steps"] = steps_for(number(given, "--train-samples", int), batch)
        for flag, path in (
            ("--lr-warmup-iters", "recipe.warmup_samples"),
            ("--lr-decay-iters", "recipe.decay_samples"),
        ):
            if flag in given and batch is not None and number(given, flag, int):
                fields[path] = number(given, flag, int) * batch.size
        return fields


def steps_for(samples: int, batch: Batch) -> int:
    """Whole steps that so many samples give, those of the ramp-up included."""
    consumed = steps = 0
    while consumed < samples and batch.size_after(consumed) < batch.size:
        consumed, steps = consumed + batch.size_after(consumed), steps + 1
    return max(1, steps + max(0, samples - consumed) // batch.size)


@dataclass(frozen=True)
class Evaluation:
    """So many iterations of the whole batch, where a Job says samples."""

    read_batch: Callable[[Given], Batch | None]
    default_interval: int | None  # the trainer's
    flags: tuple[str, ...] = ("--eval-interval", "--eval-iters")

    def write(self, job: Job) -> list[Line]:
        every = job.validation.every
        if every is None:
            # Megatron-LM divides by the interval even where nothing is evaluated.
            return [["--eval-interval", str(job.steps)], ["--eval-iters", "0"]]
        return [["--eval-interval", str(every)], ["--eval-iters", str(evaluation_steps(job))]]

    def read(self, given: Given) -> Fields:
        batch = self.read_batch(given)
        every = number(given, "--eval-interval", int) if "--eval-interval" in given else self.default_interval
        steps = number(given, "--eval-iters", int) if "--eval-iters" in given else 100
        if not steps or not every or batch is None:
            return {"validation.every": None}
        return {"validation.every": every, "validation.samples": steps * batch.size}


def evaluation_steps(job: Job) -> int:
    return max(1, -(-job.validation.samples // job.batch.size))


@dataclass(frozen=True)
class Numbers:
    """--bf16 or --fp16, neither for fp32; --fp8-format beside --bf16."""

    flags: tuple[str, ...] = ("--bf16", "--fp16", "--fp8-format")

    def write(self, job: Job) -> list[Line]:
        words = {"bf16": [["--bf16"]], "fp16": [["--fp16"]], "fp8": [["--bf16"], ["--fp8-format", "hybrid"]]}
        return words.get(job.precision, [])

    def read(self, given: Given) -> Fields:
        named = {"--fp8-format": "fp8", "--bf16": "bf16", "--fp16": "fp16"}
        return {"precision": next((value for flag, value in named.items() if flag in given), "fp32")}


def in_half(job: Job) -> bool:
    return job.precision == "fp16"


MODEL: tuple[Entry, ...] = (
    Value("--num-layers", "model.layers", int),
    Value("--hidden-size", "model.hidden", int),
    Value("--ffn-hidden-size", "model.ffn_hidden", int),
    Value("--num-attention-heads", "model.heads", int),
    Value("--seq-length", "model.seq_len", int),
    # Our Jobs have no dropout, and Megatron's default is a tenth.
    Constant(
        lambda job: [["--attention-dropout", "0.0"], ["--hidden-dropout", "0.0"]],
        ("--attention-dropout", "--hidden-dropout"),
    ),
)
CUT: tuple[Entry, ...] = (
    Value("--tensor-model-parallel-size", "layout.tp", int, 1),
    Value("--pipeline-model-parallel-size", "layout.pp", int, 1),
    Value("--micro-batch-size", "layout.micro_batch", int),
)
ADAM = Word("--optimizer", "optimizer", dict.fromkeys(("adam", "adam-8bit", "fused-adam"), "adam"))  # whichever it is
RECIPE: tuple[Entry, ...] = (
    ADAM,
    Value("--lr", "recipe.learning_rate", float),
    Value("--min-lr", "recipe.minimum_learning_rate", float, 0.0),
    Word("--lr-decay-style", "recipe.schedule", {w: w for w in ("constant", "linear", "cosine")}, "linear"),
    Value("--lr-warmup-samples", "recipe.warmup_samples", int),
    Value("--lr-decay-samples", "recipe.decay_samples", int),
    Betas(),
    Value("--adam-eps", "recipe.eps", float, 1e-8),
    Value("--weight-decay", "recipe.weight_decay", float, 0.01),
    Clip(),
    Value("--seed", "seed", int, 1234),
)
LOSS_SCALE: tuple[Entry, ...] = (
    Value("--loss-scale-window", "recipe.loss_scale.window", lambda text: int(float(text)), 1000, in_half),
    Value("--hysteresis", "recipe.loss_scale.hysteresis", int, 2, in_half),
    Value("--min-loss-scale", "recipe.loss_scale.minimum", float, 1.0, in_half),
)
PRECISION: tuple[Entry, ...] = (Numbers(), *LOSS_SCALE)
