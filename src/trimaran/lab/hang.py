"""A trial that hangs: detected by missing heartbeats, explained by the stack of every rank before it is killed."""

import linecache
import os
import re
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from trimaran.lab.trial_processes import kill, signal_step, state_of
from trimaran.processes.heartbeat import END_PHASES, SLOW_PHASES, read_heartbeats, stack_file

SECONDS_FOR_STACKS = 10.0  # on a busy machine; ranks that are stopped are not waited for
CANNOT_WRITE = ("T", "t", "Z", "")  # states of a process that is stopped, or gone
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_WAITS = re.compile(r"\bwait\(|\b(all_reduce|all_gather|reduce_scatter|broadcast|barrier|send|recv)\w*\(")
_STATES = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "is in a system call that does not return"}


class HeartbeatWatch:
    """When each rank's file last changed, by this process's clock, since the clocks of nodes differ."""

    def __init__(self, folder: Path, patience: Mapping[str, float]) -> None:
        self.folder, self.patience = folder, patience
        self.last: dict[int, tuple[dict[str, Any], float]] = {}
        self.written, self.written_at = -1, time.monotonic()

    def when_stale(self, seconds: list[float]) -> list[dict[str, Any]]:
        """The heartbeats of all ranks, if one of them is overdue; `seconds` are those of the iterations."""
        now = time.monotonic()
        for beat in read_heartbeats(self.folder):
            if self.last.get(beat["rank"], ({},))[0] != beat:
                self.last[beat["rank"]] = beat, now
        late = [beat for beat, at in self.last.values() if now - at > self._limit(beat, seconds)]
        return [beat for _, (beat, _) in sorted(self.last.items())] if late else []

    def is_silent(self, size: int) -> bool:
        """Whether a trainer without heartbeats, or before its first, has written nothing for too long."""
        if size != self.written:
            self.written, self.written_at = size, time.monotonic()
        return not self.last and time.monotonic() - self.written_at > self.patience["start"]

    def _limit(self, beat: Mapping[str, Any], seconds: list[float]) -> float:
        if beat["doing"] in END_PHASES:
            return float("inf")
        if beat["doing"] in SLOW_PHASES or len(seconds) < 2:
            return self.patience["start"]
        return max(self.patience["least"], self.patience["times"] * median(seconds))


def collect_evidence(
    folder: Path, beats: list[dict[str, Any]], slurm: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """A sentence that names the late rank and the collective that the others wait in, and the state of all ranks."""
    stacks = request_stacks(folder, beats, slurm)
    here = socket.gethostname()
    ranks = []
    for beat in beats:
        stack = stacks.get(beat["rank"], "")
        state = state_of(beat["pid"]) if beat["host"] == here else "?"
        ranks.append({**beat, "state": state, "waits_in": collective_of(stack), "stack": stack})
    return explain_hang(ranks), {"ranks": ranks}


def request_stacks(folder: Path, beats: list[dict[str, Any]], slurm: Mapping[str, Any] | None) -> dict[int, str]:
    """Each rank writes its own on SIGUSR2."""
    for pipe in folder.glob("flight-pipe*"):  # of PyTorch's flight recorder
        with suppress(OSError):  # nobody listens
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(handle, b"1\n")
            os.close(handle)
    here = socket.gethostname()
    files = {beat["rank"]: stack_file(folder / "heartbeats", beat["rank"]) for beat in beats}
    if not signal_step(slurm, "USR2"):
        for beat in beats:
            if beat["host"] == here:
                kill(beat["pid"], signal.SIGUSR2)
    deadline = time.monotonic() + SECONDS_FOR_STACKS
    waiting = [beat for beat in beats if beat["host"] != here or state_of(beat["pid"]) not in CANNOT_WRITE]
    while time.monotonic() < deadline and not all(_is_written(files[beat["rank"]]) for beat in waiting):
        time.sleep(0.05)
    return {rank: file.read_text(errors="replace") for rank, file in files.items() if file.exists()}


def _is_written(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def collective_of(stack: str) -> str:
    """'all_reduce in norm_and_sums (gradients.py:34)', or '' where the rank is not in a collective. The frame is the
    innermost outside PyTorch; its source line shows the collective, because the wait itself is below Python."""
    for thread in re.split(r"^(?=Current thread|Thread )", stack, flags=re.MULTILINE):
        frames = [match.groupdict() for match in _FRAME.finditer(thread)]
        place = next((frame for frame in frames if "/torch/" not in frame["file"]), None)
        if place is None:
            continue
        inside = [frame["function"] for frame in frames if "/torch/distributed/" in frame["file"]]
        line = linecache.getline(place["file"], int(place["line"])).strip()
        if "/torch/distributed/" in frames[0]["file"]:
            what = next(name for name in inside if name != "wrapper")
        elif place is frames[0] and _WAITS.search(line):
            what = line
        else:
            continue
        return f"{what} in {place['function']} ({Path(place['file']).name}:{place['line']})"
    return ""


def explain_hang(ranks: list[dict[str, Any]]) -> str:
    """Which ranks are late, and where the others wait for them."""
    waiting: dict[str, list[int]] = defaultdict(list)
    absent = []
    for rank in ranks:
        if rank["waits_in"]:
            waiting[rank["waits_in"]].append(rank["rank"])
        elif rank["doing"] not in END_PHASES:
            absent.append(rank)
    places = sorted(waiting.items(), key=lambda item: -len(item[1]))
    where = "; ".join(f"{_list_ranks(numbers)} in {place}" for place, numbers in places)
    if absent:
        missing = ", ".join(f"rank {rank['rank']} {_describe(rank)}" for rank in absent[:8])
        others = f"; the others wait for it: {where}" if where else ""
        return f"It hangs: {missing}{others}."
    if len(places) > 1:
        return f"It hangs: the ranks wait in different collectives: {where}."
    return f"It hangs: all ranks wait, {where}, which does not complete."


def _describe(rank: Mapping[str, Any]) -> str:
    at = f"(iteration {rank['iteration']}, {rank['doing']})"
    if rank["state"] in _STATES:
        return f"{_STATES[rank['state']]} {at}"
    if rank["state"] in ("", "Z"):
        return f"is gone {at}"
    return f"has not arrived {at}"


def _list_ranks(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > 8 else ''}"
