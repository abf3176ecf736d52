"""harness: a local sweep whose harness is killed with -9 at random moments, and started again with --resume.

The trainer is a shell command that notes its own start. A kill is survived if at the end no trial is lost: all are in
the ledger as ok, each has its outcome, and none was started twice. The trials go on while no harness lives.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import yaml
from tests.lab.sweeps import MEGATRON

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.programs import Ended
from trimaran.ledger.store import Ledger
from trimaran.spec import Trial

SWEEPS = 4
KILLS_OF_A_SWEEP = 12
TRIALS = 10
LATEST_SECONDS = 2.5  # of a kill after the harness's start, which takes half a second


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    for found in campaign.in_pairs(partial(killed_sweep, campaign, n) for n in range(campaign.count(SWEEPS))):
        yield from found


def killed_sweep(campaign: Campaign, number: int) -> list[Attempt]:
    rng, folder = campaign.random("harness", number), campaign.place("sweep")
    parallel = 1 + number % 2
    trainer = f"echo {{folder}} >> {folder}/starts; sleep 0.$((RANDOM % 9)); {MEGATRON}"
    sweep = {"base": "tiny", "command": trainer, "axes": {"seed": list(range(TRIALS))}, "place": {"parallel": parallel}}
    (folder / "s.yaml").write_text(yaml.safe_dump({"name": "s", **sweep}))
    moments = kill_again_and_again(campaign, folder, rng)
    ended = campaign.run("sweep", "s.yaml", *resuming(folder), folder=folder, limit_seconds=HANG_SECONDS)
    why = lost_or_twice(folder, ended)
    kind = f"sweep of {TRIALS} trials, {parallel} at a time"
    # If it went wrong, none of its kills is known to be harmless.
    return [Attempt(kind, why, f"killed after {', '.join(moments)}", ended.command)] * len(moments)


def kill_again_and_again(campaign: Campaign, folder: Path, rng: Random) -> list[str]:
    moments: list[str] = []
    for _ in range(KILLS_OF_A_SWEEP):
        program = campaign.start("sweep", "s.yaml", *resuming(folder), folder=folder)
        seconds = rng.random() * LATEST_SECONDS
        if program.wait(seconds):  # it has ended by itself
            break
        program.process.kill()  # the harness alone
        program.process.wait()
        moments.append(f"{seconds:.2f} s")
    return moments


def resuming(folder: Path) -> list[str]:
    """Before this file, which is written last, no sweep was started, and --resume says so."""
    return ["--resume"] if (folder / "sweeps" / "s" / "sweep.json").exists() else []


def lost_or_twice(folder: Path, ended: Ended) -> str:
    if ended.code != 0:
        return f"exit code {ended.code}, said {ended.said!r}"
    with Ledger.read(folder / "trimaran.sqlite") as ledger:
        rows: list[Trial] = list(ledger.trials())
    statuses = Counter(row.outcome.status for row in rows)
    if statuses != {"ok": TRIALS}:
        return f"the ledger has {dict(statuses)}, not {TRIALS} ok"
    starts = Counter((folder / "starts").read_text().split())
    if twice := [name for name, times in starts.items() if times > 1]:
        return f"{len(twice)} trials ran twice: {Path(twice[0]).name}"
    outcomes = list((folder / "sweeps" / "s" / "trials").glob("*/outcome.json"))
    return "" if len(starts) == len(outcomes) == TRIALS else f"{len(starts)} started, {len(outcomes)} have an outcome"
