"""restarts: `trimaran train --restarts 3` while random ranks are killed with -9, until the run is done.

Survived: exit code 0, every step was done, and each loss that was ever printed, those of steps done twice included,
equals that of a run which nobody disturbs. The run is as long as the undisturbed one gets in a third of the time.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.programs import Program, forked, losses_of
from fault_campaign.small_runs import ENDLESS, other_losses, small_run

EVERY = {"dp2": 40, "tp2×dp2": 15}  # steps between checkpoints: half a second on two idle cores
SECONDS = 60.0  # of each layout
LATEST_SECONDS = 4.0  # of a kill after the first step of a start


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    for layout, every in EVERY.items():
        expected = undisturbed_for(campaign, layout, SECONDS * campaign.scale / 3)
        folder = campaign.place("restarts")
        words = small_run(len(expected), layout, f"saving.folder={folder}", f"saving.every={every}")
        program = campaign.start(*words, "--restarts", "3")
        moments = kill_ranks(campaign, program, layout)
        ended = program.finish(HANG_SECONDS)
        why = other_losses(losses_of(ended.out), expected)
        if ended.code != 0:
            why = "hung" if ended.code is None else f"exit code {ended.code}, said {ended.said!r}"
        elif len(ended.losses) != len(expected):
            why = f"{len(ended.losses)} of {len(expected)} steps were done"
        attempt = Attempt(f"ranks of {layout} killed", why, f"kills: {', '.join(moments)}", ended.command)
        yield from [attempt] * max(1, len(moments))


def undisturbed_for(campaign: Campaign, layout: str, seconds: float) -> dict[int, float]:
    program = campaign.start(*small_run(ENDLESS, layout))
    program.until_iteration(1, HANG_SECONDS)
    program.wait(seconds)
    program.follow()
    program.kill()
    return {iteration: loss for iteration, (_, loss) in program.followed.items()}


def kill_ranks(campaign: Campaign, program: Program, layout: str) -> list[str]:
    """Until it ends, or makes no step for too long; a few kills come while ranks are still starting."""
    rng, moments = campaign.random("restarts", layout), list[str]()
    deadline = time.monotonic() + HANG_SECONDS + 10 * SECONDS * campaign.scale
    while time.monotonic() < deadline:
        starting = rng.random() < 0.1
        if not starting:
            program.wait(HANG_SECONDS, partial(has_grown, program.out, program.out.stat().st_size))
        if program.wait(rng.random() * (0.5 if starting else LATEST_SECONDS)):
            break
        if ranks := forked(program.pid):
            chosen = rng.randrange(len(ranks))
            with suppress(ProcessLookupError):
                os.kill(ranks[chosen], signal.SIGKILL)
            moments.append(f"rank {chosen} at {program.follow()}")
            campaign.progress(f"restarts: {layout}, {moments[-1]}")
    return moments


def has_grown(log: Path, size: int) -> bool:
    """By a few iterations, and not by the lines of a start alone."""
    with log.open("rb") as opened:
        opened.seek(size)
        return opened.read().count(b"\n iteration ") > 2
