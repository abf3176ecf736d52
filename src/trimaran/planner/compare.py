"""Where a Job's own layout stands among all that fit: its rank, how much slower than the best, and why."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.planner.plan import Plan, RankedLayout, ranked_layouts
from trimaran.planner.ranking import OBJECTIVES, Counts, Ranking, rank_of
from trimaran.planner.why import describe_difference
from trimaran.spec import Job, Mistake


@dataclass(frozen=True)
class Comparison:
    job: Job
    best: RankedLayout
    own: RankedLayout  # its rank: among the layouts that fit, which it would have if it fitted
    fits: bool
    feasible: int
    difference: str  # the part of a step that it loses most to, and what it wins

    @property
    def more(self) -> float:
        """Its seconds (or whatever the objective minimizes) over those of the best, less one."""
        return self.own.score / self.best.score - 1

    @property
    def same(self) -> bool:
        return self.best.layout == self.job.layout

    def row(self) -> dict[str, Any]:
        """As `trimaran plan --compare --json` has it."""
        return {
            **self.own.row(),
            "feasible": self.feasible,
            "fits": self.fits,
            "more_than_best": self.more,
            "difference": self.difference,
            "warnings": self.job.warnings(),
        }

    def __str__(self) -> str:
        own, device = self.own, self.job.cluster.device
        said = f"{own.seconds:.2f} s ({own.seconds_low:.1f} to {own.seconds_high:.1f})"
        if not self.fits:
            said += f", if it fitted: it needs {own.memory_gib:.1f} GiB, and {device.name} has {device.memory_gib:g}"
        if self.same:
            return f"{said}, the best of {self.feasible:,} layouts that fit."
        more = f"{self.more:.1%} more" if self.more >= 0 else f"{-self.more:.1%} less"
        said += f", number {own.rank:,} of {self.feasible:,} layouts that fit, {more} than the best; {self.difference}."
        if own.tie and self.more > 0:
            said += " It is a tie: the difference is within what the cost model can tell."
        return said


def compare(plan: Plan, job: Job) -> Comparison:
    """The job's layout may be one of the plan's or not; it is costed beside the best either way."""
    question, objective = plan.question, plan.objective
    asked = {name: getattr(question, name) for name in ("model", "trainer", "precision", "optimizer")}
    differing = [name for name, value in asked.items() if getattr(job, name) != value]
    if question.batch.size != job.batch.size:  # a ramp-up on the way to it changes no layout's seconds
        differing.append("batch")
    if differing:
        raise Mistake(
            f"The plan is for another {differing[0]} than that of the job {job.name}, so their layouts cannot be"
            " compared; plan the job itself: tm.plan(job).compare(job)."
        )
    rows = columns_of([plan.best.job, job])
    predicted = predict(rows, question.cluster, question.trainer)
    seconds, gib = np.broadcast_to(predicted.seconds, (2,)), np.broadcast_to(predicted.memory_gib, (2,))
    score = OBJECTIVES[objective](seconds, gib, rows.devices)
    pair = Ranking(rows, seconds, gib, np.broadcast_to(score, (2,)), Counts())
    best, own = ranked_layouts(question, pair, objective)
    return Comparison(
        job=job,
        best=best,
        own=replace(own, layout=job.layout, rank=rank_of(question, float(pair.score[1]), objective)),
        fits=bool(np.broadcast_to(predicted.fits, (2,))[1]),
        feasible=plan.counts.feasible,
        difference=describe_difference(question, pair, 1),
    )
