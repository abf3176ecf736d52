"""Where a Job's own layout stands among all that fit: its rank, how much slower than the best, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimaran.cost.columns import Columns, of_jobs
from trimaran.cost.predict import predict
from trimaran.planner.candidates import weighted_as_costed
from trimaran.planner.question import Question
from trimaran.planner.ranking import OBJECTIVES, Choices, Counts, Found, choices, rank_of
from trimaran.planner.why import difference
from trimaran.spec import Job

BEST, OWN = 0, 1  # places in `pair`


@dataclass(frozen=True)
class Compared:
    job: Job
    pair: Choices  # the best layout, then the job's own
    fits: bool
    rank: int  # among the layouts that fit, which it would have if it fitted
    feasible: int
    difference: str  # the part of a step that it loses most to, and what it wins

    @property
    def more(self) -> float:
        """Its seconds (or whatever is to be small) over those of the best, less one."""
        score = self.pair.found.score
        return float(score[OWN] / score[BEST]) - 1

    @property
    def same(self) -> bool:
        return self.pair.found.layout(BEST) == self.job.layout

    @property
    def tie(self) -> bool:
        """Whether the cost model cannot tell it from the best; `ties` looks at the distance, either way."""
        return bool(self.pair.ties[OWN])


def compared(question: Question, found: Found, job: Job, objective: str = "time") -> Compared:
    """`found` are the question's layouts, best first; the job's may be one of them or not."""
    rows = _rows([question.job(found.layout(0)), job])
    predicted = predict(rows, question.cluster, question.trainer)
    seconds, gib = np.broadcast_to(predicted.seconds, (2,)), np.broadcast_to(predicted.memory_gib, (2,))
    score = OBJECTIVES[objective](seconds, gib, rows.devices)
    pair = Found(rows, seconds, gib, np.broadcast_to(score, (2,)), Counts())
    return Compared(
        job=job,
        pair=choices(question, pair, 2, objective),
        fits=bool(np.broadcast_to(predicted.fits, (2,))[OWN]),
        rank=rank_of(question, float(pair.score[OWN]), objective),
        feasible=found.counts.feasible,
        difference=difference(question, pair, OWN),
    )


def _rows(jobs: Sequence[Job]) -> Columns:
    """As the candidates have them, so that a layout costs here what it costs there."""
    rows = of_jobs(jobs)
    layers = rows.layers.copy()
    for i, job in enumerate(jobs):
        if job.layout.split == "weighted" and job.layout.pp > 1:
            layers[i] = weighted_as_costed(job.model.layers, job.layout.stages)
    return replace(rows, layers=layers)
