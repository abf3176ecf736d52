"""The reader of torchtitan's logs: a preamble that describes the job, then a line per step with tokens per second.

torchtitan prints no time per step. Its tps is per device, so the time is global batch · sequence / (tps · devices)
where the preamble states these, and otherwise the time between the stamps of two steps.
"""

import math
import re
from collections.abc import Iterable
from datetime import datetime

from trimaran.ledger.logs.preamble import STARTS, fact, remarks_of, setup_of
from trimaran.ledger.logs.prefix import COLOUR, STAMP, date_of, split_label, without_colour
from trimaran.ledger.logs.run import MIB_PER_GIB, LoggedRun, LogReader, trial_of
from trimaran.ledger.reading import Reading
from trimaran.spec import Setup, Trial

_STEP = re.compile(r"(?<!validate )\bstep: *(\d[\d,]{0,15})\s+\S*?loss: *(\S+)")
_STEP_BEGUN = re.compile(r"(?<!validate )\bstep: *[\d,]+(?:$| )")
_END = re.compile(r"mfu: *[^\s%]+%")
_TPS = re.compile(r"\btps: *(\S+)")
_TFLOPS = re.compile(r"\btflops: *(\d[\d,]*(?:\.\d+)?)\b")
_MEMORY = re.compile(r"memory: *(\d+(?:\.\d+)?)GiB\(")
_PREAMBLE = re.compile(r"\[titan\]|device mesh with (?:\[|parallelism: )")


def is_torchtitan(head: str) -> bool:
    plain = COLOUR.sub("", head)
    found = _STEP.search(plain)
    return (found is not None and "tps:" in plain) or _PREAMBLE.search(plain) is not None


def read_torchtitan(lines: Iterable[str], file: str) -> Reading:
    return _TitanReader(file).read(lines)


class _TitanReader(LogReader):
    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._stated: set[tuple[str, str]] = set()  # facts by rank, in this run
        self._tokens: float | None = None  # per device and step, in this run
        self._clock: datetime | None = None  # of the last step

    def read(self, lines: Iterable[str]) -> Reading:
        for at, line in enumerate(lines, 1):
            text = without_colour(line)
            if "step:" in text and _STEP_BEGUN.search(text.rstrip()):
                self._take_steps(at, text)
            else:
                self._take_other(at, text)
        return self._reading("preamble", "a start without a step and without a failure after it")

    # --- steps

    def _take_steps(self, at: int, line: str) -> None:
        """Usually one; two where two ranks wrote over each other."""
        text = line.rstrip()
        heads = list(_STEP.finditer(text))
        if not heads:
            self._list_unread(at, text, "the line is truncated after its step")
        end = 0
        limits = [*(head.start() for head in heads), len(text)][1:]
        for head, limit in zip(heads, limits, strict=True):
            prefix = text[end : head.start()]
            closing = _END.search(text, head.end(), limit)
            complete = closing is not None or (line.endswith("\n") and limit == len(text))
            end = closing.end() if closing else limit
            if complete and _TPS.search(text, head.end(), end):
                self._take_step(at, prefix, text[head.start() : end], head)
            else:
                self._list_unread(at, text[head.start() : end], "the line is truncated: its last fields are missing")
        self._look_for_failure(at, text[end:])

    def _take_step(self, at: int, prefix: str, text: str, head: re.Match[str]) -> None:
        tps, printed, memory = _TPS.search(text), _TFLOPS.search(text), _MEMORY.search(text)
        try:
            step = int(head[1].replace(",", ""))
            loss = float(head[2])
            rate = float(tps[1].replace(",", "")) if tps else math.nan
        except ValueError as error:
            self._list_unread(at, text, f"a number is garbled: {error}")
            return
        tflops = float(printed[1].replace(",", "")) if printed else math.nan
        peak = float(memory[1]) if memory else 0.0
        if not 0 < rate < math.inf:
            self._list_unread(at, text, f"tokens per second are {rate:g}; only a positive number can be used")
            return
        run = self._run_of(at, step, prefix, text)
        if run is None:
            return
        run.add(step, self._seconds(run, step, rate, prefix), 0, tflops, text)
        run.loss = loss if loss != -1 else None  # -1: known on another pipeline stage
        if 0 < peak < math.inf:  # 0 is printed where the device is not PyTorch's own
            run.memory.add(0, step, peak * MIB_PER_GIB)

    def _seconds(self, run: LoggedRun, step: int, rate: float, prefix: str) -> float:
        """NaN where neither the tokens of a step nor the time of the step before are known."""
        if self._tokens:
            return self._tokens / rate
        before, self._clock = self._clock, _clock(prefix)
        if before is None or self._clock is None or not run.numbers:
            return math.nan
        passed = (self._clock - before).total_seconds() / (step - run.numbers[-1])
        return passed if passed > 0 else math.nan

    def _run_of(self, at: int, step: int, prefix: str, text: str) -> LoggedRun | None:
        """The run a step belongs to; None when another rank has printed it before."""
        label = split_label(prefix)[0]
        run = self._run
        if run is not None and run.numbers:
            if label != run.label or (not label and step == run.numbers[-1]):
                return None
            if step > run.numbers[-1]:
                return run
            if not label and run.has_printed(step, text):
                return None
        if run is None or run.numbers:
            run = self._new_run(at)
        run.begin(at, text, label, date_of(prefix), 0)
        self._tokens = _tokens_per_device(setup_of(run.facts))
        return run

    def _new_run(self, at: int) -> LoggedRun:
        self._stated, self._tokens, self._clock = set(), None, None
        return super()._new_run(at)

    # --- all other lines

    def _take_other(self, at: int, text: str) -> None:
        if "Training completed" in text and self._run:
            self._run.finished = True
        elif found := fact(text):
            self._take_fact(at, split_label(text)[0], *found)
        else:
            self._look_for_failure(at, text)

    def _take_fact(self, at: int, label: str, name: str, words: tuple[str, ...]) -> None:
        """A preamble printed again by the same rank begins a new run; other ranks print about the same one."""
        run = self._run
        if run is not None and run.numbers and (label != run.label or name not in STARTS):
            return
        if run is None or run.numbers or (run.has_outcome and (name, label) in self._stated):
            run = self._new_run(at)
        self._stated.add((name, label))
        run.facts.setdefault(name, words)

    # --- the end

    def _trial(self, run: LoggedRun, several: bool) -> Trial:
        setup = setup_of(run.facts)
        run.notes += remarks_of(run.facts)
        if run.numbers and not _tokens_per_device(setup):
            timed = any(math.isfinite(seconds) for seconds in run.seconds)
            missing = "The log does not state devices, batch and sequence length"
            run.notes.append(f"{missing}: seconds are {'the time between two steps' if timed else 'unknown'}.")
        return trial_of(run, self._file, setup, "6n-attention", several)


def _tokens_per_device(setup: Setup) -> float | None:
    if not setup.gbs or not setup.seq_len or not setup.devices:
        return None
    return setup.gbs * setup.seq_len / setup.devices


def _clock(prefix: str) -> datetime | None:
    stamps = STAMP.findall(prefix)
    if not stamps or "-" not in stamps[-1][0]:
        return None
    day, fraction = stamps[-1]
    try:
        return datetime.fromisoformat(f"{day}.{fraction[:6]:0<6}")
    except ValueError:
        return None
