"""A trial that hangs, detected by missing heartbeats; `processes/hang.py` explains it before it is killed."""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from trimaran.processes.heartbeat import END_PHASES, SLOW_PHASES, read_heartbeats


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
