"""`trimaran train` of a model so small that a step takes milliseconds, and what an undisturbed run of it prints."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from fault_campaign.campaign import HANG_SECONDS, Campaign

SMALL = (
    "model.hidden=32",
    "model.layers=2",
    "model.seq_len=32",
    "model.vocab=320",
    "batch.size=4",
    "layout.micro_batch=1",
)
LAYOUTS = {
    "one rank": (),
    "dp2": ("layout.dp=2",),
    "tp2×dp2": ("layout.tp=2", "layout.dp=2"),
    "tp2×pp2": ("layout.tp=2", "layout.pp=2"),
}
ENDLESS = 1_000_000
TOLERANCE = 1e-5  # relative, of losses


def small_run(steps: int, layout: str = "one rank", *settings: str) -> list[str]:
    """Words for `trimaran`."""
    words = [word for setting in (*SMALL, *LAYOUTS[layout], *settings) for word in ("--set", setting)]
    return ["train", "tiny", "--steps", str(steps), *words]


def undisturbed(campaign: Campaign, words: list[str], iterations: int) -> dict[int, float]:
    """The losses of a run that nobody disturbs: of the same command, without saving.folder, ended when it got there."""
    program = campaign.start(*words)
    reached = program.until_iteration(iterations, HANG_SECONDS + iterations)
    program.kill()
    if not reached:
        raise RuntimeError(
            f"the undisturbed run did not reach iteration {iterations}: {program.err.read_text()[-500:]}"
        )
    return {iteration: loss for iteration, (_, loss) in program.followed.items()}


def other_losses(seen: Iterable[tuple[int, float]], expected: Mapping[int, float]) -> str:
    """The first iteration whose loss differs from that of the undisturbed run; '' where none does."""
    for iteration, loss in seen:
        wanted = expected.get(iteration)
        if wanted is None or not math.isclose(loss, wanted, rel_tol=TOLERANCE):
            return f"the loss of iteration {iteration} was {loss}, undisturbed {wanted}"
    return ""


def rank_pids(heartbeats: Path, ranks: int) -> list[int]:
    """By rank; empty until all have a heartbeat."""
    files = sorted(heartbeats.glob("rank-*.json"))
    try:
        return [json.loads(file.read_text())["pid"] for file in files] if len(files) == ranks else []
    except ValueError:  # one is being replaced
        return []
