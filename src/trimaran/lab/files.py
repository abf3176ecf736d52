"""The files of a trial's folder, replaced atomically, so that a reader sees the old or the new content.

Only the standard library, as in everything that the supervisor imports.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

ORDER = "order.json"  # the supervisor's command and limits
STARTED = "started.json"  # written by the supervisor when it has started the trainer
RESULT = "result.json"  # written by the supervisor at the end, and authoritative
SUBMITTED = "submitted.json"  # the SLURM job's number
WAITS = "waits"  # written by a supervisor whose srun waits for the controller, and removed after it
LOCK = "lock"  # held by the supervisor while it lives
METRICS, HEARTBEATS, STDOUT, STDERR = "metrics.jsonl", "heartbeats", "stdout", "stderr"


def write_json(path: Path, values: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """None where the file is missing or incomplete."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def read_result(folder: Path) -> dict[str, Any] | None:
    """None also where it is not what a supervisor writes."""
    result = read_json(folder / RESULT) or {}
    kinds = {"how": str, "reason": str, "code": int, "started": float, "ended": float, "kernel_oom_kills": int}
    return result if all(isinstance(result.get(name), kind) for name, kind in kinds.items()) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; the last may still be being written."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [values for values in found if isinstance(values, dict)]


def lock(path: Path) -> int | None:
    """Take a lock that is released with this process; None where another has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def is_locked(path: Path) -> bool:
    handle = lock(path)
    if handle is not None:
        os.close(handle)
    return handle is None
