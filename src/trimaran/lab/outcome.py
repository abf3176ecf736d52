"""What the end of a trial means: exactly one status, the numbers it measured, and the reason in words."""

import re
from collections import Counter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from trimaran.lab import files
from trimaran.lab.slurm_messages import is_time_limit, why_lost
from trimaran.ledger.recognise import read_file
from trimaran.processes.exit_codes import DONE, OUT_OF_MEMORY
from trimaran.processes.out_of_memory import is_out_of_memory
from trimaran.spec import Job, Mistake, Outcome
from trimaran.spec.trial import Status

TAIL_BYTES = 65536
TIME_LIMIT = "SLURM ended the job at its time limit."
OURS = "trimaran: "  # begins what our trainer says on stderr
_ERROR = re.compile(r"error|exception|killed|fatal|abort|refused|no space|denied|trimaran:|task \d+", re.I)
_STACK = re.compile(r"^\s*(File |Traceback|\^|~|During handling|The above exception)|warning", re.I)


def outcome_of(job: Job, folder: Path, result: dict[str, Any], ours: bool) -> Outcome:
    """`ours`: our own trainer, which writes metrics; another's log is read as the ledger reads logs."""
    numbers = measured(job, folder, ours)
    status, reason = status_of(result, numbers, folder, ours)
    return Outcome(status=status, reason=reason, **numbers)


def outcome_without_result(job: Job, folder: Path, status: Status, reason: str, ours: bool) -> Outcome:
    """Of a trial that its launcher reports as ended, or that was ended by neither its supervisor nor us."""
    numbers = measured(job, folder, ours)
    stderr = "\n".join(tail(folder / files.STDERR))
    if status != "timeout" and is_time_limit(stderr):
        status, reason = "timeout", TIME_LIMIT
    if status == "cancelled" and (why := why_lost(stderr)):
        status, reason = "lost", why
    if status == "timeout":
        status, reason = at_limit(numbers, reason)
    return Outcome(status=status, reason=reason, **numbers)


def at_limit(numbers: dict[str, Any], reason: str) -> tuple[Status, str]:
    """What was measured before a limit counts."""
    if numbers.get("iterations"):
        return "ok", f"It reached its limit after {numbers['iterations']} measured iterations."
    return "timeout", reason


def status_of(result: dict[str, Any], numbers: dict[str, Any], folder: Path, ours: bool) -> tuple[Status, str]:
    how, code = result["how"], result["code"]
    if how in ("hang", "cancelled"):
        return how, result["reason"]
    if how == "timeout":
        return at_limit(numbers, result["reason"])
    stderr = tail(folder / files.STDERR)
    if how == "exit" and not (code == DONE and numbers.get("seconds")):
        if is_time_limit("\n".join(stderr)):
            return at_limit(numbers, TIME_LIMIT)
        if why := why_lost("\n".join(stderr)):
            return "lost", why
    if code == DONE or how == "stable":  # which we ended ourselves; srun hides the trainer's own code
        return (
            ("ok", "") if numbers.get("seconds") else ("fail", "It ended with exit code 0, but measured no iteration.")
        )
    stdout = [] if ours else tail(folder / files.STDOUT)
    oom = [line for line in (*stderr, *stdout) if is_out_of_memory(line)]
    last = _last_errors(stderr) or stderr[-5:] or _last_errors(stdout)
    was_killed = code in (-9, 137) or any("SIGKILL" in line or "Killed" in line for line in last)
    by_kernel = result["kernel_oom_kills"] > 0 and was_killed
    if (ours and code == OUT_OF_MEMORY) or by_kernel or oom:
        kernel = " The kernel killed a process because memory ran out." if by_kernel else ""
        return "oom", (_reason(last if by_kernel else oom or last) + kernel).strip()
    return "fail", result["reason"] or _reason(last) or f"It ended with exit code {code} and no message."


def measured(job: Job, folder: Path, ours: bool) -> dict[str, Any]:
    """Nothing where the file is damaged."""
    try:
        numbers = read_metrics(job, folder) if ours else read_log(folder)
        Outcome(status="ok", **numbers)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return {}
    return numbers


def read_metrics(job: Job, folder: Path) -> dict[str, Any]:
    """From our trainer's metrics file, without the warm-up."""
    every = [record for record in files.read_lines(folder / files.METRICS) if "seconds" in record]
    records = [record for record in every if not record["warm_up"]]
    if not records:
        return {}
    seconds = [record["seconds"] for record in records]
    low, middle, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    last, tokens = records[-1], job.batch.size * job.model.seq_len
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
        "tokens_per_second": tokens / middle,
        "tflops": flops / middle,
        "tflops_formula": formula,
        "last_loss": last["loss"],
        "skipped": last["skipped"],
        "nan": last["nan"],
        "straggler": straggler_of(records),
    }


def straggler_of(records: list[dict[str, Any]]) -> str | None:
    """The rank that was slower than its peers in most iterations, if in a third of those measured one was."""
    slow = [record["straggler"] for record in records if record.get("straggler")]
    if not slow or 3 * len(slow) < len(records):
        return None
    (rank, host), times = Counter((each["rank"], each["host"]) for each in slow).most_common(1)[0]
    slowdown = median(each["slowdown"] for each in slow if (each["rank"], each["host"]) == (rank, host))
    return (
        f"Rank {rank} on {host} took {slowdown:.1f} times as long as its peers in {times} of {len(records)} measured"
        " iterations: a slow node, not the layout."
    )


def read_log(folder: Path) -> dict[str, Any]:
    """From another trainer's log, as `trimaran import` reads it."""
    try:
        trials = read_file(folder / files.STDOUT).trials
    except Mistake:
        return {}
    known = trials[-1].outcome.model_dump(exclude={"status", "reason"})
    return {name: value for name, value in known.items() if value not in (None, ())}


def tail(file: Path) -> list[str]:
    """The last lines of an output, without stacks and warnings."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip() and not _STACK.search(line)]


def _last_errors(lines: list[str]) -> list[str]:
    return [line for line in lines if _ERROR.search(line)][-5:]


def _reason(lines: list[str]) -> str:
    """Our trainer's own sentence, else the first line: what failed first explains the others."""
    ours = [line.removeprefix(OURS) for line in lines if line.startswith(OURS)]
    ours = [line for line in ours if not line.startswith(("warning:", "note:"))]
    return (ours or [line.removeprefix(OURS) for line in lines] or [""])[0][:500]
