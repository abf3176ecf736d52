"""slurm: the controller goes away for 12 s during a sweep, and a node is set down under a trial.

A real SLURM of four nodes on this machine. Survived: after the sweep, resumed at most twice where it ended by itself
with trials lost, every trial has been measured (ok), none has failed.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from tests.lab.sweeps import MEGATRON
from tests.slurm.cluster import SlurmCluster, missing_programs

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign, Skipped
from trimaran.ledger.store import Ledger

TRIALS = 3
DOWN_SECONDS = 12.0


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    if missing := missing_programs():
        raise Skipped(f"SLURM is not installed ({', '.join(missing)} missing)")
    with SlurmCluster() as slurm:
        for number in range(campaign.count(2)):
            yield attempt(campaign, slurm, controller_down, number)
            yield attempt(campaign, slurm, node_down, number)


Disturb = Callable[[Campaign, SlurmCluster, Path, int], str]


def attempt(campaign: Campaign, slurm: SlurmCluster, disturb: Disturb, number: int) -> Attempt:
    folder = campaign.place("slurm")
    sweep = {
        "base": "tiny",
        "command": f"sleep 4; {MEGATRON}",
        "axes": {"seed": list(range(TRIALS))},
        "place": {"kind": "slurm", "parallel": 1 + number % 2, "options": ["--no-requeue"] * (1 - number % 2)},
    }
    (folder / "s.yaml").write_text(yaml.safe_dump({"name": "s", **sweep}))
    program = campaign.start("sweep", "s.yaml", environment=slurm.environment, folder=folder)
    moment = disturb(campaign, slurm, folder, number)
    ended = program.finish(HANG_SECONDS)
    starts = 1
    while ended.code is not None and starts < 3 and statuses(folder).get("ok", 0) < TRIALS:
        ended = campaign.run("sweep", "s.yaml", "--resume", environment=slurm.environment, folder=folder)
        starts += 1
    why = "hung" if ended.code is None else burned(statuses(folder))
    return Attempt(disturb.__name__.replace("_", " "), why, f"{moment}; {starts} starts", ended.command)


def statuses(folder: Path) -> Counter[str]:
    ledger = folder / "trimaran.sqlite"
    if not ledger.exists():
        return Counter()
    with Ledger.read(ledger) as rows:
        return Counter(row.outcome.status for row in rows.trials())


def burned(found: Counter[str]) -> str:
    """Lost trials stay in the ledger beside those that were measured instead."""
    bad = {status: count for status, count in found.items() if status not in ("ok", "lost")}
    return "" if found["ok"] == TRIALS and not bad else f"the ledger has {dict(found)}"


def wait_for_start(campaign: Campaign, folder: Path) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not any((folder / "sweeps").glob("*/trials/*/started.json")) and time.monotonic() < deadline:
        campaign.progress("slurm: waiting for a trial to start")
        time.sleep(0.05)


def controller_down(campaign: Campaign, slurm: SlurmCluster, folder: Path, number: int) -> str:
    rng = campaign.random("slurm", "controller", number)
    wait_for_start(campaign, folder)
    seconds = rng.random() * 4
    time.sleep(seconds)
    slurm.stop_controller()
    try:
        time.sleep(DOWN_SECONDS)
    finally:
        slurm.start_controller()
    return f"{seconds:.1f} s after a trial's start, for {DOWN_SECONDS:.0f} s"


def node_down(campaign: Campaign, slurm: SlurmCluster, folder: Path, number: int) -> str:
    rng = campaign.random("slurm", "node", number)
    wait_for_start(campaign, folder)
    seconds = rng.random() * 3
    time.sleep(seconds)
    busy = [name for name, state in slurm.states().items() if state.startswith(("alloc", "mix"))]
    if not busy:
        return "no trial was running"
    slurm.notice_failure(busy[0])
    time.sleep(1.0)
    slurm.command("scontrol", "update", f"nodename={busy[0]}", "state=resume")
    return f"{seconds:.1f} s after a trial's start"
