"""Why a run ended, from the messages of PyTorch, torchrun and SLURM; the same words inside a path do not count."""

import re
from dataclasses import dataclass

from trimaran.ledger.logs.prefix import split_label
from trimaran.processes.out_of_memory import WORDS, is_out_of_memory
from trimaran.spec.trial import Status


@dataclass(frozen=True)
class LoggedFailure:
    status: Status
    reason: str
    line: int
    strength: int  # one rank's out-of-memory explains the time-outs of the others; an exit code explains nothing


_REASON_LENGTH = 400  # an allocator's message ends in a page of advice

_HANG = re.compile(
    r"(?<!/)\b(?:watchdog caught collective operation timeout|watchdog got stuck|NCCL watchdog timeout"
    r"|NCCL operations have failed or timed out)",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Fault|Timeout|Abort)(?::|\s*$)")
_EXIT_CODE = re.compile(r"(?<![\w/])exitcode\s*:\s*-?[1-9]")
_TRACEBACK = "Traceback (most recent call last)"
# Cheap tests first: nearly every line of a log has none of these, and a regular expression costs ten times as much.
_ALL_WORDS = (*WORDS, "atchdog", "NCCL operations", _TRACEBACK, "exitcode", "CANCELLED")


class FailureWatch:
    """Checks every line that is not a measurement, and tracks which ranks are in the middle of a traceback."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()

    def look(self, text: str, line: int) -> LoggedFailure | None:
        if not self._in_traceback and not any(word in text for word in _ALL_WORDS):
            return None
        label, body = split_label(text.rstrip())
        found = self._classify(label, body)
        if found is None:
            return None
        status, strength = found
        return LoggedFailure(status, body.strip()[:_REASON_LENGTH], line, strength)

    def _classify(self, label: str, body: str) -> tuple[Status, int] | None:
        if is_out_of_memory(body):
            return "oom", 3
        if _HANG.search(body):
            return "hang", 2
        if body.startswith(_TRACEBACK):
            self._in_traceback.add(label)
            return "fail", 1
        if label in self._in_traceback and _EXCEPTION.match(body):
            self._in_traceback.discard(label)
            return "fail", 2
        if "CANCELLED" in body and "slurmstepd" in body:
            return ("timeout", 2) if "TIME LIMIT" in body else ("cancelled", 2)
        return ("fail", 1) if _EXIT_CODE.search(body) else None
