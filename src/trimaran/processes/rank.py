"""What a rank is given, and how a run ends."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.processes.flight_recorder import flight_recorder
from trimaran.processes.heartbeat import STARTING, Heartbeat

SECONDS_TO_EXPLAIN = 2.0  # after a first failure: the cause may arrive after its consequences

Receive = Callable[[Any], None]


@dataclass(frozen=True)
class Rank:
    """What a rank's own function is called with; it returns the rank's exit code."""

    rank: int
    local_rank: int
    world_size: int
    store: Any  # where the ranks meet; None for a single one
    send: Receive  # to the process that started the run, or to this one where torchrun or SLURM did
    heartbeat: Heartbeat


@dataclass(frozen=True)
class RunEnd:
    code: int
    reason: str = ""  # a sentence for stderr; empty where all went well, or a rank has printed it
    iteration: int | None = None  # the last one done, where a signal ended the ranks before they could say it


def start_heartbeat(folder: Path | None, rank: int) -> Heartbeat:
    """Before the process group, whose backend reads the flight recorder's variables."""
    if folder is not None:
        for name, value in flight_recorder(folder).items():
            os.environ.setdefault(name, value)
    heartbeat = Heartbeat(folder, rank)
    heartbeat.beat(STARTING)
    return heartbeat
