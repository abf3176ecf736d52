"""RampPlan: the best schedule of a batch ramp-up, and what rules of thumb and schedules written by hand lose."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.planner.estimates import best_on, parse_tokens
from trimaran.planner.hand_schedules import (
    HandStage,
    cost_hand_schedule,
    losses,
    main_loss,
    parse_stages,
    ramp_loss,
)
from trimaran.planner.question import Question
from trimaran.planner.ramp import (
    NoLayout,
    Phase,
    RampSchedule,
    best_schedule,
    best_unchanged,
    options_for,
    practical_only,
    ramp_phases,
)
from trimaran.planner.relax import explain_impossible
from trimaran.planner.tables import short_layout
from trimaran.spec import Batch, Mistake

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
                "losses": [
                    {
                        "from_batch": one.stretch.phases[0].batch,
                        "to_batch": one.stretch.phases[-1].batch,
                        "nodes": one.stretch.configuration.nodes,
                        "layout": short_layout(one.stretch.configuration.layout),
                        "hours": one.hours,
                        "percent": 100 * one.share,
                        "why": one.why,
                    }
                    for one in losses(self.best, found)
                ],
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
    if not 0 <= switch_minutes < float("inf"):
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
