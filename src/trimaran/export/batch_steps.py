"""Megatron-LM's --step-batch-size-schedule: a ramp-up written out, the batch after so many tokens."""

import re
from itertools import pairwise

from trimaran.export.entries import Given, Line, number
from trimaran.export.megatron_deepspeed import read_batch as read_plain
from trimaran.spec import Batch, Job, Mistake, Ramp

SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def batch_lines(job: Job) -> list[Line]:
    if not ramps(job.batch):
        return [["--global-batch-size", str(job.batch.size)]]
    ramp, seq_len = job.batch.ramp, job.model.seq_len
    assert ramp is not None
    steps = (job.batch.size - ramp.start) // ramp.increment
    # A step comes when so many samples were consumed; the flag counts tokens.
    schedule = [
        f"{-(-step * ramp.samples // steps) * seq_len}:{ramp.start + step * ramp.increment}"
        for step in range(steps + 1)
    ]
    return [["--step-batch-size-schedule", " ".join(schedule)]]


def ramps(batch: Batch) -> bool:
    return batch.ramp is not None and batch.ramp.start < batch.size


def read_batch(given: Given) -> Batch | None:
    """A schedule in equal steps is a ramp-up; any other counts as its last batch."""
    words = given.get("--step-batch-size-schedule")
    if not words:
        plain = {flag: value for flag, value in given.items() if flag != "--rampup-batch-size"}
        return read_plain(plain)
    steps = [_step(word) for word in " ".join(words).replace(",", " ").split()]
    sizes = [size for _, size in steps]
    increments = {after - before for before, after in pairwise(sizes)}
    if len(increments) != 1 or min(increments) < 1 or "--seq-length" not in given:
        return Batch.of({"size": sizes[-1]}, "The batch")
    samples = max(1, int(steps[-1][0]) // number(given, "--seq-length", int))
    ramp = Ramp(start=sizes[0], increment=increments.pop(), samples=samples)
    return Batch.of({"size": sizes[-1], "ramp": ramp}, "The batch")


def _step(word: str) -> tuple[float, int]:
    found = re.fullmatch(r"([\d.eE+]+)([KMBT]?):(\d+)", word.upper())
    if not found:
        raise Mistake(f"--step-batch-size-schedule has {word!r}, but its steps are TOKENS:BATCH, such as 2.4B:320.")
    return float(found[1]) * SUFFIXES.get(found[2], 1), int(found[3])
