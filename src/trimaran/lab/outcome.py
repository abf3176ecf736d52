"""What the end of a trial means: exactly one status, the numbers it measured, and the reason in words."""

import re
from pathlib import Path
from statistics import quantiles
from typing import Any

from trimaran.lab import files
from trimaran.ledger.recognise import read_file
from trimaran.processes.exit_codes import DONE, OUT_OF_MEMORY
from trimaran.spec import Job, Mistake, Outcome
from trimaran.spec.trial import Status

TAIL_BYTES = 65536
_NO_MEMORY = re.compile(r"out of memory|OutOfMemory|oom-kill|can't allocate memory|Cannot allocate memory", re.I)
_MATTERS = re.compile(r"error|exception|killed|fatal|abort|refused|no space|denied|trimaran:|task \d+", re.I)
_DULL = re.compile(r"^\s*(File |Traceback|\^|~|During handling|The above exception)|warning", re.I)


def outcome_of(job: Job, folder: Path, result: dict[str, Any], ours: bool) -> Outcome:
    """`ours`: our own trainer, which writes metrics; another's log is read as the ledger reads logs."""
    numbers = measured(job, folder) if ours else logged(folder)
    status, reason = status_of(result, numbers, folder, ours)
    return Outcome(status=status, reason=reason, **numbers)


def status_of(result: dict[str, Any], numbers: dict[str, Any], folder: Path, ours: bool) -> tuple[Status, str]:
    how, code = result["how"], result["code"]
    last_words = tail(folder / files.STDERR) or ("" if ours else tail(folder / files.STDOUT, only_errors=True))
    if how == "hang":
        return "hang", result["reason"]
    if how == "cancelled":
        return "cancelled", result["reason"]
    if how == "timeout":
        if numbers.get("iterations"):
            return "ok", f"Its limit came after {numbers['iterations']} measured iterations."
        return "timeout", result["reason"]
    ended_well = code == DONE or how == "stable"  # which we ended ourselves; srun hides the trainer's own code
    if ended_well and numbers.get("seconds"):
        return "ok", ""
    if ended_well:
        return "fail", "It ended well, but measured no iteration."
    killed = result["kernel_oom_kills"] > 0 and (code in (-9, 137) or "SIGKILL" in last_words or "Killed" in last_words)
    if (ours and code == OUT_OF_MEMORY) or killed or _NO_MEMORY.search(last_words):
        by = " The kernel killed a process because memory ran out." if killed else ""
        return "oom", (_sentence(last_words) + by).strip()
    return "fail", result["reason"] or _sentence(last_words) or f"It ended with exit code {code} and said nothing."


def measured(job: Job, folder: Path) -> dict[str, Any]:
    """From our trainer's records, without the warm-up."""
    every = [record for record in files.read_lines(folder / files.METRICS) if "seconds" in record]
    records = [record for record in every if not record["warm_up"]]
    if not records:
        return {}
    seconds = [record["seconds"] for record in records]
    low, middle, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    last, size = records[-1], job.batch.size * job.model.seq_len
    formula = job.trainer.prints
    flops = last["tflops"][formula] * last["seconds"]
    return {
        "seconds": middle,
        "seconds_low": low,
        "seconds_high": high,
        "iterations": len(seconds),
        "warmup": len(every) - len(records),
        "memory_gib": max(last["peak_memory_gib"]) or None,
        "memory_by_stage_gib": tuple(last["peak_memory_gib"]),
        "tokens_per_second": size / middle,
        "tflops": flops / middle,
        "tflops_formula": formula,
        "last_loss": last["loss"],
        "skipped": last["skipped"],
        "nan": last["nan"],
    }


def logged(folder: Path) -> dict[str, Any]:
    """From another trainer's log, as `trimaran import` reads it."""
    try:
        trials = read_file(folder / files.STDOUT).trials
    except Mistake:
        return {}
    known = trials[-1].outcome.model_dump(exclude={"status", "reason"})
    return {name: value for name, value in known.items() if value not in (None, ())}


def tail(file: Path, only_errors: bool = False) -> str:
    """The last lines that matter: errors without the stack above them, else the last of all."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not _DULL.search(line)]
    telling = [line for line in said if _MATTERS.search(line)]
    return "\n".join((telling or ([] if only_errors else said))[-5:])


def _sentence(words: str) -> str:
    """Our trainer's own, else the first of the last words: what failed first explains the others."""
    lines = [line.removeprefix("trimaran: ") for line in words.splitlines()]
    ours = [line.removeprefix("trimaran: ") for line in words.splitlines() if line.startswith("trimaran: ")]
    ours = [line for line in ours if not line.startswith(("warning:", "note:"))]
    return (ours or lines or [""])[0][:500]
