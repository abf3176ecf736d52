"""Megatron's flags of the global batch, its ramp-up, the length of training and evaluation.

Megatron-DeepSpeed ramps up by --rampup-batch-size. Megatron-LM accepts that flag and ignores it; its
--step-batch-size-schedule writes the ramp-up out, as the batch after so many tokens.
"""

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from trimaran.export.flags import Fields, Given, Line, number
from trimaran.spec import Batch, Job, Mistake

SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def ramp_up_lines(job: Job) -> list[Line]:
    ramp = job.batch.ramp
    size = ["--global-batch-size", str(job.batch.size)]
    if ramp is None:
        return [size]
    return [size, ["--rampup-batch-size", str(ramp.start), str(ramp.increment), str(ramp.samples)]]


def read_ramp_up(given: Given) -> Batch | None:
    if "--global-batch-size" not in given:
        return None
    size, words = number(given, "--global-batch-size", int), given.get("--rampup-batch-size")
    if not words:
        return Batch.of({"size": size}, "The batch")
    try:
        ramp = dict(zip(("start", "increment", "samples"), map(int, words), strict=True))
    except ValueError:
        raise Mistake(
            f"--rampup-batch-size is {' '.join(words)!r}, but must be START INCREMENT SAMPLES, such as 192 16 9765625."
        ) from None
    return Batch.of({"size": size, "ramp": ramp}, "The batch")


def schedule_lines(job: Job) -> list[Line]:
    if not has_ramp_up(job.batch):
        return [["--global-batch-size", str(job.batch.size)]]
    ramp, seq_len = job.batch.ramp, job.model.seq_len
    assert ramp is not None
    steps = (job.batch.size - ramp.start) // ramp.increment
    # The batch grows after so many samples; the flag counts tokens.
    schedule = [
        f"{-(-step * ramp.samples // steps) * seq_len}:{ramp.start + step * ramp.increment}"
        for step in range(steps + 1)
    ]
    return [["--step-batch-size-schedule", " ".join(schedule)]]


def has_ramp_up(batch: Batch) -> bool:
    return batch.ramp is not None and batch.ramp.start < batch.size


def read_schedule(given: Given) -> Batch | None:
    """A schedule in equal steps is a ramp-up; of any other only the last batch is read."""
    words = given.get("--step-batch-size-schedule")
    if not words:
        return read_ramp_up({flag: value for flag, value in given.items() if flag != "--rampup-batch-size"})
    steps = [_schedule_step(word) for word in " ".join(words).replace(",", " ").split()]
    if not steps:
        raise Mistake("--step-batch-size-schedule has no steps; they are TOKENS:BATCH, such as 2.4B:320.")
    sizes = [size for _, size in steps]
    increments = {after - before for before, after in pairwise(sizes)}
    if len(increments) != 1 or min(increments) < 1 or "--seq-length" not in given:
        return Batch.of({"size": sizes[-1]}, "The batch")
    seq_len = number(given, "--seq-length", int)
    samples = max(1, int(steps[-1][0]) // seq_len) if seq_len > 0 else 1  # the model's own check refuses 0
    ramp = {"start": sizes[0], "increment": increments.pop(), "samples": samples}
    return Batch.of({"size": sizes[-1], "ramp": ramp}, "The batch")


def _schedule_step(word: str) -> tuple[float, int]:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?(?:E\+?[0-9]{1,2})?)([KMBT]?):([0-9]{1,15})", word.upper())
    if not match:
        raise Mistake(f"--step-batch-size-schedule has {word!r}, but its steps are TOKENS:BATCH, such as 2.4B:320.")
    return float(match[1]) * SUFFIXES.get(match[2], 1), int(match[3])


@dataclass(frozen=True)
class BatchFlags:
    """The global batch and its ramp-up, in the flags of one of the forks."""

    flags: tuple[str, ...]
    lines: Callable[[Job], list[Line]]
    read_batch: Callable[[Given], Batch | None]

    def write(self, job: Job) -> list[Line]:
        return self.lines(job)

    def read(self, given: Given) -> Fields:
        batch = self.read_batch(given)
        return {} if batch is None else {"batch": batch.model_dump(exclude_none=True)}


@dataclass(frozen=True)
class TrainingLength:
    """In samples, because the batch may ramp up; --train-iters and the like are read too."""

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
            if batch is not None and (iterations := number(given, flag, int)):
                fields[path] = iterations * batch.size
        return fields


def steps_for(samples: int, batch: Batch) -> int:
    """Whole steps in so many samples, those of the ramp-up included."""
    consumed = steps = 0
    while consumed < samples and (size := batch.size_after(consumed)) < batch.size:
        left = min(-(-(samples - consumed) // size), 2**62)
        same_size = bisect_right(range(left), size, key=lambda step: batch.size_after(consumed + step * size))
        consumed, steps = consumed + same_size * size, steps + same_size
    return max(1, steps + max(0, samples - consumed) // batch.size)


@dataclass(frozen=True)
class EvaluationFlags:
    """In iterations of the whole batch, where a Job has samples."""

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
        every = number(given, "--eval-interval", int, self.default_interval)
        steps = number(given, "--eval-iters", int, 100)
        if not steps or not every or batch is None:
            return {"validation.every": None}
        return {"validation.every": every, "validation.samples": steps * batch.size}


def evaluation_steps(job: Job) -> int:
    return max(1, -(-job.validation.samples // job.batch.size))
