"""saves: kill -9 of the whole run, parent and ranks, at random moments, half of them while a checkpoint
is being written.

A run is killed and resumed again and again. A kill is survived if the next start resumes from a checkpoint at most one
interval behind the last iteration in the log (an asynchronous one may still be on its way: five times what a
synchronous save takes on this machine), and if every loss printed before and after it equals that of one run which
nobody disturbs.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.programs import Program
from fault_campaign.small_runs import ENDLESS, other_losses, small_run, undisturbed

KILLS_OF_A_RUN = 10
# Iterations between checkpoints: one to two seconds on two idle cores.
EVERY = {"one rank": 300, "tp2×dp2": 30}
KILLS = {("one rank", False): 30, ("one rank", True): 30, ("tp2×dp2", False): 20, ("tp2×dp2", True): 20}


@dataclass
class Kill:
    number: int
    last: int  # iteration in the log when it was killed
    during_save: bool
    shown_at: dict[int, float]  # when each iteration of this start was seen in the log
    killed_at: float
    losses: dict[int, float]
    command: str
    resumed_from: int | None = None  # by the next start; None: it did not start
    failure: str = ""


@dataclass
class Chain:
    """One run, killed again and again."""

    every: int
    kills: list[Kill] = field(default_factory=list)

    @property
    def longest_save(self) -> float:
        """Seconds between an iteration that is saved and the next, in a run that saves synchronously."""
        gaps = [
            shown - kill.shown_at[iteration - 1]
            for kill in self.kills
            for iteration, shown in kill.shown_at.items()
            if (iteration - 1) % self.every == 0 and iteration - 1 in kill.shown_at
        ]
        return max(gaps, default=0.0)


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    for layout, every in EVERY.items():
        words = small_run(ENDLESS, layout)
        chains: dict[bool, list[Chain]] = {}
        for asynchronous in (False, True):
            kills = campaign.count(KILLS[layout, asynchronous])
            sizes = [min(KILLS_OF_A_RUN, kills - first) for first in range(0, kills, KILLS_OF_A_RUN)]
            tasks = [partial(chain, campaign, layout, asynchronous, n, size) for n, size in enumerate(sizes)]
            chains[asynchronous] = list(campaign.in_pairs(tasks))
        all_kills = [kill for group in chains.values() for each in group for kill in each.kills]
        expected = undisturbed(campaign, words, max(kill.last for kill in all_kills) + every)
        allowed = 5 * max(each.longest_save for each in chains[False])
        for asynchronous, group in chains.items():
            kind = f"{'asynchronous' if asynchronous else 'synchronous'}, {layout}"
            for each in group:
                for kill in each.kills:
                    moment = f"kill {kill.number} at iteration {kill.last}" + (
                        ", while saving" if kill.during_save else ""
                    )
                    why = judge(kill, every, allowed if asynchronous else 0.0, expected)
                    yield Attempt(kind, why, moment, kill.command)


def judge(kill: Kill, every: int, allowed_seconds: float, expected: dict[int, float]) -> str:
    if kill.failure:
        return kill.failure
    assert kill.resumed_from is not None
    due = kill.resumed_from + every
    if kill.last > due:
        since = kill.killed_at - kill.shown_at.get(due, 0.0)
        if since > allowed_seconds:
            return f"resumed from {kill.resumed_from}, {kill.last - kill.resumed_from} behind, saving every {every}"
    return other_losses(kill.losses.items(), expected)


def chain(campaign: Campaign, layout: str, asynchronous: bool, number: int, kills: int) -> Chain:
    rng = campaign.random("saves", layout, asynchronous, number)
    every, folder = EVERY[layout], campaign.place("saves")
    saving = (f"saving.folder={folder}", f"saving.every={every}", f"saving.asynchronous={str(asynchronous).lower()}")
    words = small_run(ENDLESS, layout, *saving)
    made = Chain(every)
    for count in range(kills + 1):  # one more start shows what the last kill left
        program = campaign.start(*words)
        started = program.until_iteration(1, HANG_SECONDS)
        first = min(program.followed, default=0)
        if made.kills:
            made.kills[-1].resumed_from = first - 1
            if not started:
                made.kills[-1].failure = f"the next start ended: {program.finish(HANG_SECONDS).said}"
        if count == kills or not started:
            program.kill()
            break
        kill = disturb(program, rng, folder, first, every, number * KILLS_OF_A_RUN + count)
        made.kills.append(kill)
        campaign.progress(
            f"saves: {layout}, {'a' * asynchronous}synchronous, kill {kill.number} at iteration {kill.last}"
        )
    return made


def disturb(program: Program, rng: Random, folder: Path, first: int, every: int, number: int) -> Kill:
    """Kill after a random iteration of the next one and a half intervals, or in the first save from there on."""
    while_saving = rng.random() < 0.5
    at = first + int(rng.random() * 1.5 * every)
    late = rng.random() * 0.02  # seconds, so that a kill comes inside a step or inside a file
    program.until_iteration(at, HANG_SECONDS)
    if while_saving:
        program.wait(HANG_SECONDS, lambda: any(folder.glob(".step-*")) or program.follow() > at + 1.2 * every)
    time.sleep(late)
    during = any(folder.glob(".step-*"))
    program.kill()
    killed_at, last = time.monotonic(), program.follow()
    shown = {iteration: when for iteration, (when, _) in program.followed.items()}
    losses = {iteration: loss for iteration, (_, loss) in program.followed.items()}
    return Kill(number, last, during, shown, killed_at, losses, program.command)
