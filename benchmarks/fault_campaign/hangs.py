"""hangs: a random rank is stopped with SIGSTOP, in layouts of two axes.

Survived: the run ends within its patience and 30 s more with exit code 4, stderr names the stopped rank, and
no process is left. Where the parent is killed with -9 as well: no process outlives it by more than 30 s, the stopped
one included.
"""

import os
import re
import signal
from collections.abc import Iterator

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.programs import last_line
from fault_campaign.small_runs import ENDLESS, rank_pids, small_run

LAYOUTS = ("tp2×pp2", "tp2×dp2")
PATIENCE_SECONDS, MORE_SECONDS = 5, 30.0


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    for number in range(campaign.count(2)):
        for layout in LAYOUTS:
            for kills_parent in (False, True):
                yield attempt(campaign, layout, kills_parent, number)


def attempt(campaign: Campaign, layout: str, kills_parent: bool, number: int) -> Attempt:
    rng, beats = campaign.random("hangs", layout, kills_parent, number), campaign.place("heartbeats")
    watch = ("--patience", str(PATIENCE_SECONDS), "--heartbeats", str(beats))
    program = campaign.start(*small_run(ENDLESS, layout), *watch)
    try:
        at, rank = 2 + rng.randrange(20), rng.randrange(4)
        program.until_iteration(at, HANG_SECONDS)
        pids = rank_pids(beats, 4)
        kind = f"a rank of {layout} stopped" + (", then the parent killed" if kills_parent else "")
        moment = f"rank {rank} after iteration {at}"
        if not pids:
            return Attempt(kind, f"did not train: {program.err.read_text()[-200:]}", moment, program.command)
        os.kill(pids[rank], signal.SIGSTOP)
        if kills_parent:
            program.process.kill()
            program.process.wait()
            left = program.left_after(MORE_SECONDS)
            why = f"{len(left)} processes outlived their parent" if left else ""
        else:
            ended = program.wait(PATIENCE_SECONDS + MORE_SECONDS)
            why = diagnosed_badly(program.process.returncode, program.err.read_text(), rank) if ended else "hung"
            if not why and (left := program.left_after(1.0)):
                why = f"{len(left)} processes were left"
        return Attempt(kind, why, moment, program.command)
    finally:
        program.kill()


def diagnosed_badly(code: int, said: str, rank: int) -> str:
    if code != 4:
        return f"exit code {code}, said {last_line(said)[:200]!r}"
    if not re.search(rf"\brank {rank}\b", said, re.IGNORECASE) or "/pytorch/" in said or "Traceback" in said:
        return f"does not say that rank {rank} stopped: {last_line(said)[:200]!r}"
    return ""
