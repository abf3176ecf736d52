"""RampPlan: the best schedule of a batch ramp-up, and what rules of thumb and schedules written by hand lose."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.planner.estimates import best_on, parse_tokens
from trimaran.planner.question import Question
from trimaran.planner.ramp import (
    NoLayout,
    Phase,
    PhaseCost,
    RampSchedule,
    Stretch,
    best_schedule,
    best_unchanged,
    options_for,
    practical_only,
    ramp_phases,
)
from trimaran.planner.relax import explain_impossible
from trimaran.planner.tables import short_layout
from trimaran.spec import Batch, Mistake
from trimaran.spec.bounds import MOST

Progress = Callable[[Sequence[Phase]], Iterable[Phase]]


@dataclass(frozen=True)
class OtherSchedule:
    """Another way to run the ramp-up, costed by the same model."""

    name: str
    schedule: RampSchedule | None  # None where some batch cannot run
    best: RampSchedule
    passed_over: tuple[str, ...] = ()  # stages that never run, and why
    by_hand: bool = False

    def to_dict(self) -> dict[str, Any]:
        found = self.schedule
        if found is None:
            values: dict[str, Any] = dict.fromkeys(("hours", "loss_percent", "ramp_loss_percent", "schedule"))
            values |= {"losses": [], "reason": "no layout runs every batch"}
        else:
            values = {
                "hours": found.hours,
                "loss_percent": 100 * (found.hours / self.best.hours - 1),
                "ramp_loss_percent": 100 * ramp_loss(self.best, found),
                "schedule": found.rows(),
                "losses": losses(self.best, found),
                "reason": main_loss(self.best, found),
            }
        return {"name": self.name, **values, "passed_over": list(self.passed_over)}


@dataclass(frozen=True)
class RampPlan:
    question: Question
    tokens: int
    best: RampSchedule
    others: tuple[OtherSchedule, ...]

    def to_dict(self) -> dict[str, Any]:
        """What `trimaran ramp --json` prints."""
        question = self.question
        return {
            "model": question.model.name,
            "cluster": question.cluster.name,
            "trainer": question.trainer.name,
            "precision": question.precision,
            "batch": question.batch.to_dict(),
            "most_nodes": question.cluster.nodes,
            "tokens": self.tokens,
            "switch_minutes": self.best.switch_hours * 60,
            "hours": self.best.hours,
            "node_hours": self.best.node_hours,
            "schedule": self.best.rows(),
            "compared": [other.to_dict() for other in self.others],
        }


def plan_ramp(
    question: Question,
    tokens: str | float = "300B",
    switch_minutes: float = 10.0,
    by_hand: Sequence[str] = (),
    progress: Progress = iter,
) -> RampPlan:
    """The nodes and layout for each batch of a ramp-up so that the run ends first.

    `by_hand`: schedules to compare, each as nodes:batch:micro batch[:tp:pp],… `progress`: wraps the phases, for a bar.
    """
    if not 0 <= switch_minutes <= MOST:
        raise Mistake(f"switch_minutes is {switch_minutes:g}, but a switch takes zero minutes or more.")
    wanted, hands = parse_tokens(tokens), {text: parse_stages(text) for text in by_hand}
    question.check()
    most, switch_hours = question.cluster.nodes, switch_minutes / 60
    for text, stages in hands.items():
        for stage in stages:
            if stage.nodes > most:
                raise Mistake(f"The schedule {text} uses {stage.nodes} nodes, but at most {most} are allowed.")
    run = ramp_phases(question.batch, -(-wanted // question.model.seq_len))
    best, searched = _best(question, run, switch_hours, progress)

    everywhere = best_unchanged(searched.fixing(nodes=[most]), run, switch_hours)
    anywhere = best_unchanged(searched, run, switch_hours)
    others = [OtherSchedule(f"one layout on all {most} nodes", everywhere, best)]
    if anywhere != everywhere:
        others.append(OtherSchedule("one layout, best number of nodes", anywhere, best))

    def schedule_for(stage: HandStage, part: Sequence[Phase]) -> RampSchedule | None:
        return best_unchanged(question.fixing(**stage.fixed()), part, switch_hours)

    def why_not(stage: HandStage, batch: int) -> str:
        return str(best_on(question.fixing(**stage.fixed()).replace(batch=Batch(size=batch)), stage.nodes))

    for text, stages in hands.items():
        schedule, passed_over = cost_hand_schedule(stages, run, schedule_for, why_not, switch_hours)
        others.append(OtherSchedule(text, schedule, best, passed_over, by_hand=True))
    return RampPlan(question, wanted, best, tuple(others))


def _best(
    question: Question, run: Sequence[Phase], switch_hours: float, progress: Progress
) -> tuple[RampSchedule, Question]:
    """Among practical layouts, or among all where those cannot run some batch; and the question that was searched."""
    searched = practical_only(question)
    try:
        options = options_for(searched, run, switch_hours, progress)
    except NoLayout:
        searched = question
        try:
            options = options_for(searched, run, switch_hours, progress)
        except NoLayout as none:
            raise Mistake(explain_impossible(none.question)) from None
    return best_schedule(run, options, switch_hours), searched


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
        if len(numbers) not in (3, 5) or not all(n.isdecimal() and len(n) <= 20 and int(n) > 0 for n in numbers):
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


def losses(best: RampSchedule, other: RampSchedule) -> list[dict[str, Any]]:
    """What each stretch of a schedule loses against the best one, and what is different where it is slowest."""
    ours = dict(best.by_phase())
    found = []
    for stretch in other.stretches:
        pairs = [(p, ours[p], theirs) for p, theirs in zip(stretch.phases, stretch.costs, strict=True)]
        best_hours = sum(p.iterations * mine.seconds for p, mine, _ in pairs) / 3600
        phase, mine, theirs = max(pairs, key=lambda pair: pair[2].seconds / pair[1].seconds)
        why = "the same"
        if mine.configuration != theirs.configuration:
            slower = theirs.seconds / mine.seconds - 1
            why = f"at batch {phase.batch} {slower:+.0%}: {'; '.join(_differences(phase, mine, theirs))}"
        found.append(
            {
                "from_batch": stretch.phases[0].batch,
                "to_batch": stretch.phases[-1].batch,
                "nodes": stretch.configuration.nodes,
                "layout": short_layout(stretch.configuration.layout),
                "hours": stretch.hours - best_hours,
                "percent": 100 * (stretch.hours / best_hours - 1),
                "why": why,
            }
        )
    return found


def main_loss(best: RampSchedule, other: RampSchedule) -> str:
    """Of the stretch that loses most, or the switches."""
    worst = max(losses(best, other), key=lambda loss: loss["hours"])
    switches = (len(other.stretches) - len(best.stretches)) * best.switch_hours
    return "its switches" if switches > max(worst["hours"], 0.0) else str(worst["why"])


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
