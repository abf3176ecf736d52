"""Ramp-up schedules written by hand: what they would take, and why the planner's is faster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimaran.planner.ramp import Phase, PhaseCost, RampSchedule, Stretch
from trimaran.spec import Mistake


@dataclass(frozen=True)
class HandStage:
    """From this batch on, so many nodes and this micro batch (and this tp and pp, if given)."""

    nodes: int
    batch: int
    micro_batch: int
    tp: int | None = None
    pp: int | None = None

    def __str__(self) -> str:
        cut = "" if self.tp is None else f":{self.tp}:{self.pp}"
        return f"{self.nodes}:{self.batch}:{self.micro_batch}{cut}"

    def fixed(self) -> dict[str, frozenset[int]]:
        """As constraints of a Question."""
        given = {"nodes": self.nodes, "mbs": self.micro_batch, "tp": self.tp, "pp": self.pp}
        return {name: frozenset([value]) for name, value in given.items() if value is not None}


def parse_stages(text: str) -> tuple[HandStage, ...]:
    """'16:32:1,16:64:2' or, with tp and pp, '16:32:1:1:2'."""
    stages = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) not in (3, 5) or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise Mistake(
                f"{part.strip()!r} is not a stage of a schedule: give nodes:batch:micro batch, such as 16:32:1,"
                " or nodes:batch:micro batch:tp:pp, such as 16:32:1:1:2."
            )
        stages.append(HandStage(*(int(n) for n in numbers)))
    batches = [stage.batch for stage in stages]
    if batches != sorted(set(batches)):
        raise Mistake(f"The schedule's batches are {batches}, but each stage must begin at a larger one.")
    return tuple(stages)


def cost_hand_schedule(
    stages: Sequence[HandStage],
    run: Sequence[Phase],
    schedule_for: Callable[[HandStage, Sequence[Phase]], RampSchedule | None],
    why_not: Callable[[HandStage, int], str],
    switch_hours: float,
) -> tuple[RampSchedule | None, tuple[str, ...]]:
    """The schedule, None where some batch cannot run at all; and the stages that never run, with the reason.

    A stage runs from its batch to the next one's, in the best layout it allows (`schedule_for`). A stage that has no
    layout for all batches on the way is passed over, and the one before it continues. `why_not`: why it cannot run a
    batch.
    """
    passed_over, stretches, end = list[str](), list[Stretch](), len(run)
    for i, stage in reversed(list(enumerate(stages))):
        begin = 0 if i == 0 else next((n for n, phase in enumerate(run) if phase.batch >= stage.batch), end)
        if begin >= end:
            passed_over.append(f"{stage} never begins")
            continue
        unchanged = schedule_for(stage, run[begin:end])
        if unchanged is None:
            stuck = next((phase.batch for phase in run[begin:end] if schedule_for(stage, [phase]) is None), None)
            batches = f"batches {run[begin].batch} to {run[end - 1].batch}"
            cause = why_not(stage, stuck) if stuck else f"no one layout runs all {batches}"
            passed_over.append(f"{stage} is passed over: {cause}")
            continue
        stretches += unchanged.stretches
        end = begin
    whole = RampSchedule(tuple(reversed(stretches)), switch_hours) if end == 0 else None
    return whole, tuple(reversed(passed_over))


def ramp_loss(best: RampSchedule, other: RampSchedule) -> float:
    """Share by which the batches below the full one take longer, without switches."""
    full = best.by_phase()[-1][0].batch
    ramps = [sum(p.iterations * c.seconds for p, c in s.by_phase() if p.batch < full) for s in (best, other)]
    return ramps[1] / ramps[0] - 1 if ramps[0] else 0.0


@dataclass(frozen=True)
class StretchLoss:
    """What one stretch of a schedule loses against the best one, and what is different where it is slowest."""

    stretch: Stretch
    hours: float
    share: float  # of what the best schedule takes for the same batches
    why: str


def losses(best: RampSchedule, other: RampSchedule) -> list[StretchLoss]:
    ours = dict(best.by_phase())
    found = []
    for stretch in other.stretches:
        pairs = [(p, ours[p], theirs) for p, theirs in zip(stretch.phases, stretch.costs, strict=True)]
        takes = sum(p.iterations * mine.seconds for p, mine, _ in pairs) / 3600
        phase, mine, theirs = max(pairs, key=lambda pair: pair[2].seconds / pair[1].seconds)
        slower = theirs.seconds / mine.seconds - 1
        same = mine.configuration == theirs.configuration
        why = (
            "the same"
            if same
            else f"at batch {phase.batch} {slower:+.0%}: {'; '.join(_differences(phase, mine, theirs))}"
        )
        found.append(StretchLoss(stretch, stretch.hours - takes, stretch.hours / takes - 1, why))
    return found


def main_loss(best: RampSchedule, other: RampSchedule) -> str:
    """Of the stretch that loses most, or the switches."""
    worst = max(losses(best, other), key=lambda loss: loss.hours)
    switches = (len(other.stretches) - len(best.stretches)) * best.switch_hours
    return "its switches" if switches > max(worst.hours, 0.0) else worst.why


def _differences(phase: Phase, ours: PhaseCost, theirs: PhaseCost) -> list[str]:
    a, b = ours.configuration, theirs.configuration
    found = []
    count = phase.batch // (b.layout.dp * b.layout.micro_batch)
    more = theirs.bubble > ours.bubble + 0.03
    if b.layout.pp > 1 and (more or theirs.bubble > 0.25):
        batches = "1 micro batch" if count == 1 else f"{count} micro batches"
        instead = f", not {ours.bubble:.0%}" if more else ""
        found.append(f"{batches} per replica on pp {b.layout.pp}: {theirs.bubble:.0%} bubble{instead}")
    if a.nodes != b.nodes:
        found.append(f"{b.nodes} nodes instead of {a.nodes}")
    for name in ("micro_batch", "tp", "pp", "recompute", "schedule", "zero"):
        here, there = getattr(a.layout, name), getattr(b.layout, name)
        if here != there and len(found) < 3:
            found.append(f"{name.replace('_', ' ')} {there} instead of {here}")
    return found or ["another layout"]
