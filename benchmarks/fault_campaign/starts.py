"""starts: ranks killed with -9 as soon as they exist, and signals in the first seconds of a run.

Survived: the run ends within a minute, with exit code 4 (a rank failed), 5 (interrupted) or killed by that signal, and
no process is left.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from fault_campaign.campaign import Attempt, Campaign
from fault_campaign.programs import Program, forked
from fault_campaign.small_runs import ENDLESS, small_run

END_SECONDS = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LATEST_SECONDS = 5.0  # of a signal; on two idle cores a run makes its first step after 2.5


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    kills = [partial(killed_rank, campaign, number) for number in range(campaign.count(8))]
    signals = [partial(signalled, campaign, name, number) for name in SIGNALS for number in range(campaign.count(4))]
    yield from campaign.in_pairs([*kills, *signals])


def killed_rank(campaign: Campaign, number: int) -> Attempt:
    rng = campaign.random("starts", "kill", number)
    layout = ("dp2", "tp2×dp2")[number % 2]
    which, late = rng.randrange(2), rng.choice((0.0, 0.0, rng.random() * 0.005, rng.random() * 0.1))
    program = campaign.start(*small_run(ENDLESS, layout))
    deadline = time.monotonic() + END_SECONDS
    while len(ranks := forked(program.pid)) <= which and time.monotonic() < deadline and program.process.poll() is None:
        pass  # a rank that is killed later than a few milliseconds after its fork is another fault
    time.sleep(late)
    with suppress(IndexError, ProcessLookupError):
        os.kill(ranks[which], signal.SIGKILL)
    kind = "a rank killed as soon as it exists"
    return judged(program, kind, f"rank {which} of {layout}, {1000 * late:.1f} ms after its fork", (4,))


def signalled(campaign: Campaign, number: signal.Signals, count: int) -> Attempt:
    rng = campaign.random("starts", number.name, count)
    seconds, to_all, at_fork = rng.random() * LATEST_SECONDS, rng.random() < 0.5, rng.random() < 0.5
    program = campaign.start(*small_run(ENDLESS, "dp2"))
    if at_fork:
        program.wait(END_SECONDS, lambda: forked(program.pid))
        seconds /= 50
    program.wait(seconds)
    # As a terminal does for Ctrl-C and when it is closed, or as `kill` does.
    with suppress(ProcessLookupError):
        (os.killpg if to_all else os.kill)(program.pid, number)
    after, to = "first rank" if at_fork else "start", "the process group" if to_all else "the parent"
    moment = f"{seconds:.2f} s after the {after}, to {to}"
    return judged(program, f"{number.name} while it starts", moment, (4, 5, -number, 128 + number))


def judged(program: Program, kind: str, moment: str, codes: tuple[int, ...]) -> Attempt:
    if not program.wait(END_SECONDS):
        why = f"hung, {len(program.processes())} processes"
    elif left := program.left_after(5.0):
        why = f"ended and left {len(left)} processes"
    else:
        code = program.process.returncode
        said = program.err.read_text().strip().splitlines()[-1:]
        why = "" if code in codes else f"exit code {code}, said {said}"
    program.kill()
    return Attempt(kind, why, moment, program.command)
