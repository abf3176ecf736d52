"""Why ranks hang: the stack of every rank is collected, and a sentence names the late one and where the others wait.

Only the standard library, because the supervisor of a trial imports this.
"""

import linecache
import os
import re
import signal
import socket
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trimaran.processes.heartbeat import END_PHASES, stack_file
from trimaran.processes.kernel import STOPPED, has_open, kill, state_of

SECONDS_FOR_STACKS = 10.0  # on a busy machine; ranks that are stopped are not waited for
CANNOT_WRITE = (*STOPPED, "Z", "")  # states of a process that is stopped, or gone
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_WAITS = re.compile(r"\bwait\(|\b(all_reduce|all_gather|reduce_scatter|broadcast|barrier|send|recv)\w*\(")
_STATES = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "is in a system call that does not return"}


class Frame(NamedTuple):
    file: str
    line: int
    function: str


def collect_evidence(
    heartbeats: Path | None,
    beats: Sequence[Mapping[str, Any]],
    flight: Path | None = None,
    signal_others: Callable[[], bool] = lambda: False,
) -> tuple[str, dict[str, Any]]:
    """A sentence that names the late rank and the collective that the others wait in, and the state of all ranks.
    `beats`: the last of each rank, where a rank that gave up says itself what it waited in; `flight`: the folder of
    PyTorch's flight recorder; `signal_others`: sends SIGUSR2 to all ranks, also on other machines, if it can."""
    stacks = request_stacks(heartbeats, beats, flight or heartbeats, signal_others) if heartbeats else {}
    here = socket.gethostname()
    ranks = []
    for beat in beats:
        stack = stacks.get(beat["rank"], "")
        state = state_of(beat["pid"]) if beat["host"] == here else "?"
        ranks.append({**beat, "state": state, "waits_in": beat.get("waits_in") or collective_of(stack), "stack": stack})
    return explain_hang(ranks), {"ranks": ranks}


def request_stacks(
    heartbeats: Path, beats: Sequence[Mapping[str, Any]], flight: Path, signal_others: Callable[[], bool]
) -> dict[int, str]:
    """Each rank writes its own on SIGUSR2."""
    for pipe in flight.glob("flight-pipe*"):
        with suppress(OSError):  # nobody listens
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(handle, b"1\n")
            os.close(handle)
    here = socket.gethostname()
    files = {beat["rank"]: stack_file(heartbeats, beat["rank"]) for beat in beats}
    # SIGUSR2 would kill a process that does not expect it: one that has the pid of a rank of an earlier run.
    local = [beat for beat in beats if beat["host"] == here and has_open(beat["pid"], files[beat["rank"]])]
    waiting = [beat for beat in local if state_of(beat["pid"]) not in CANNOT_WRITE]
    if signal_others():
        waiting += [beat for beat in beats if beat["host"] != here]
    else:
        for beat in local:
            kill(beat["pid"], signal.SIGUSR2)
    deadline = time.monotonic() + SECONDS_FOR_STACKS
    while time.monotonic() < deadline and not all(_is_written(files[beat["rank"]]) for beat in waiting):
        time.sleep(0.05)
    return {rank: file.read_text(errors="replace") for rank, file in files.items() if file.exists()}


def _is_written(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def collective_of(stack: str) -> str:
    """'all_reduce in norm_and_sums (gradients.py:34)', or '' where no thread of the rank is in a collective."""
    for thread in re.split(r"^(?=Current thread|Thread )", stack, flags=re.MULTILINE):
        frames = [Frame(match["file"], int(match["line"]), match["function"]) for match in _FRAME.finditer(thread)]
        if found := _collective_in(frames):
            return found
    return ""


def collective_that_raised(error: BaseException) -> str:
    """The same, of a rank that waits no more."""
    summary = reversed(traceback.extract_tb(error.__traceback__))
    return _collective_in([Frame(frame.filename, frame.lineno or 0, frame.name) for frame in summary])


def _collective_in(frames: list[Frame]) -> str:
    """The frame is the innermost outside PyTorch; its source line shows the collective, because the wait itself is
    below Python."""
    place = next((frame for frame in frames if "/torch/" not in frame.file), None)
    if place is None:
        return ""
    if "/torch/distributed/" in frames[0].file:
        inside = (frame.function for frame in frames if "/torch/distributed/" in frame.file)
        what = next((name for name in inside if name != "wrapper"), "wrapper")
    else:
        what = linecache.getline(place.file, place.line).strip()
        if place is not frames[0] or not _WAITS.search(what):
            return ""
    return f"{what} in {place.function} ({Path(place.file).name}:{place.line})"


def explain_hang(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Which ranks are late, and where the others wait for them."""
    waiting: dict[str, list[int]] = defaultdict(list)
    absent = []
    for rank in ranks:
        if rank["state"] in STOPPED:
            absent.append(rank)
        elif rank["waits_in"]:
            waiting[rank["waits_in"]].append(rank["rank"])
        elif rank["doing"] not in END_PHASES:
            absent.append(rank)
    places = sorted(waiting.items(), key=lambda item: -len(item[1]))
    where = "; ".join(f"{_list_ranks(numbers)} in {place}" for place, numbers in places)
    if absent:
        missing = ", ".join(f"rank {rank['rank']} {_describe(rank)}" for rank in absent[:8])
        others = f"; the others wait for {'it' if len(absent) == 1 else 'them'}: {where}" if where else ""
        return f"It hangs: {missing}{others}."
    if len(places) > 1:
        return f"It hangs: the ranks wait in different collectives: {where}."
    return f"It hangs: all ranks wait, {where}, which does not complete."


def _describe(rank: Mapping[str, Any]) -> str:
    at = f"(iteration {rank['iteration']}, {rank['doing']})" if rank["iteration"] else f"({rank['doing']})"
    if rank["state"] in _STATES:
        return f"{_STATES[rank['state']]} {at}"
    if rank["state"] in ("", "Z"):
        return f"is gone {at}"
    return f"has not arrived {at}"


def _list_ranks(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > 8 else ''}"
