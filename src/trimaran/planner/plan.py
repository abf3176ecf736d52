"""Plan: the planner's answer. Search, reduce to one layout per cut, predict what is shown: composed here, once.

Commands, sweeps, reports and notebooks only render a Plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trimaran.cost.flops import FORMULAS, TrainingStep, tflops_per_device
from trimaran.cost.parameters import total_parameters
from trimaran.cost.predict import Interval, interval
from trimaran.planner.candidates import cuts_excluded
from trimaran.planner.explain import step_breakdown
from trimaran.planner.question import Objective, Question
from trimaran.planner.ranking import KEPT, Counts, Ranking, best_of_each_cut, search
from trimaran.planner.relax import explain_impossible
from trimaran.planner.tables import ShownAsTables, TitledTable, data_frame, short_layout
from trimaran.planner.why import reasons
from trimaran.spec import Job, Layout, Mistake

if TYPE_CHECKING:
    import pandas

    from trimaran.planner.compare import Comparison

HEADER = ("Nodes", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs")  # as in the tuning notes
MORE = ("80 % interval", "ZeRO", "recompute", "SP", "schedule", "bubble", "limited by", "")
LEFT = (12, 14, 16, 17)  # columns of text
BEST, TIE = "★", "≈"
BEST_IN = {"time": "seconds per iteration", "memory": "memory", "tokens-per-device-hour": "tokens per device-hour"}


@dataclass(frozen=True, repr=False)
class RankedLayout:
    """One layout of a plan, and what the cost model predicts for it."""

    question: Question
    rank: int
    layout: Layout
    seconds: float  # of an iteration
    seconds_low: float  # 80 % interval
    seconds_high: float
    uncertain_most_about: str  # the constant of the cost model that the interval is widest for
    uncertain_by: float  # by how much that constant alone may move the seconds, as a share
    memory_gib: float  # of the fullest stage
    bubble: float  # share of the step in which stages wait
    shares: Mapping[str, float]  # of the step, by part
    limited_by: str
    tie: bool  # the cost model cannot tell it from the best
    score: float  # what the objective minimizes

    @property
    def devices(self) -> int:
        return self.layout.devices

    @property
    def nodes(self) -> int:
        return self.devices // self.question.cluster.devices_per_node

    @property
    def job(self) -> Job:
        """Complete: it can be saved, trained, explained, exported."""
        return self.question.job(self.layout)

    def __repr__(self) -> str:
        return (
            f"<RankedLayout {self.rank}: {short_layout(self.layout)}; {self.seconds:.2f} s ({self.seconds_low:.1f} to"
            f" {self.seconds_high:.1f}), {self.memory_gib:.1f} GiB, limited by {self.limited_by}>"
        )

    def row(self) -> dict[str, Any]:
        """The layout's fields and what it is predicted to cost, as `trimaran plan --json` has them."""
        question, layout = self.question, self.layout
        step = TrainingStep(question.model, question.batch.size, layout.tp, layout.recompute)
        tokens_per_second = step.tokens / self.seconds
        flops = FORMULAS[question.trainer.prints](step)
        return {
            "rank": self.rank,
            "nodes": self.nodes,
            "devices": self.devices,
            **layout.to_dict(),
            "gbs": question.batch.size,
            "micro_batches": question.batch.size // (layout.dp * layout.micro_batch),
            "seconds": self.seconds,
            "seconds_low": self.seconds_low,
            "seconds_high": self.seconds_high,
            "uncertain_most_about": self.uncertain_most_about,
            "memory_gib": self.memory_gib,
            "tflops": float(tflops_per_device(flops, self.seconds, layout.devices)),
            "tflops_formula": question.trainer.prints,
            "tokens_per_second": tokens_per_second,
            "tokens_per_device_hour": tokens_per_second * 3600 / layout.devices,
            "bubble": self.bubble,
            "shares": dict(self.shares),
            "limited_by": self.limited_by,
            "tie": self.tie,
        }

    def cells(self) -> list[str]:
        """The row as tables show it, under HEADER and MORE."""
        row = self.row()
        schedule = row["schedule"] if row["pp"] > 1 else "-"
        schedule += f" x{row['virtual_stages']}" if row["virtual_stages"] > 1 else ""
        return [
            str(row["nodes"]),
            f"{total_parameters(self.question.model) / 1e9:.4g}B",
            *(str(row[name]) for name in ("dp", "tp", "pp", "micro_batch", "gbs")),
            f"{row['memory_gib']:.{0 if row['memory_gib'] >= 10 else 2}f}GB",
            f"{row['seconds']:.2f}",
            f"{row['tflops']:.2f}",
            f"{row['seconds_low']:.1f}–{row['seconds_high']:.1f}",
            str(row["zero"]),
            row["recompute"],
            "yes" if row["sequence_parallel"] else "no",
            schedule,
            f"{row['bubble']:.1%}",
            row["limited_by"],
            BEST if self.rank == 1 else TIE if row["tie"] else "",
        ]


@dataclass(frozen=True, repr=False)
class Plan(ShownAsTables):
    """The best layouts of a question, why the first is best, and what became of all others.

    Where no layout exists, `candidates` is empty, `impossible` says why and what would work, and `best` raises that.
    """

    question: Question
    objective: Objective
    candidates: tuple[RankedLayout, ...]  # best first
    why: tuple[str, ...]  # the best against the best with another tp, pp and micro batch
    ranking: Ranking = field(compare=False)  # the best of each (dp, tp, pp, mbs) that fits, as arrays

    @property
    def best(self) -> RankedLayout:
        if not self.candidates:
            raise Mistake(self.impossible)
        return self.candidates[0]

    @property
    def ties(self) -> tuple[RankedLayout, ...]:
        """Those that the cost model cannot tell from the best."""
        return tuple(each for each in self.candidates[1:] if each.tie)

    @property
    def counts(self) -> Counts:
        """How many layouts were considered, refused by a rule, too large for the memory, and feasible."""
        return self.ranking.counts

    @cached_property
    def cuts_excluded(self) -> dict[str, int]:
        """Ways to cut the devices into dp x tp x pp that were excluded before any layout was made, by reason."""
        return cuts_excluded(self.question)

    @cached_property
    def impossible(self) -> str:
        """Why there is no layout, and the nearest constraint that leaves one; empty where there is one."""
        return "" if self.candidates else explain_impossible(self.question)

    def compare(self, job: Job) -> "Comparison":
        """Where a job's own layout stands among all that fit."""
        from trimaran.planner.compare import compare  # it needs a Plan

        return compare(self, job)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each candidate, with the keys of `layouts` in `trimaran plan --json`."""
        return [each.row() for each in self.candidates]

    def frame(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame; the parts of a step are columns such as `shares.bubble`."""
        return data_frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """What `trimaran plan --json` prints."""
        return {
            "model": self.question.model.name,
            "parameters": total_parameters(self.question.model),
            "cluster": self.question.cluster.name,
            "trainer": self.question.trainer.name,
            "precision": self.question.precision,
            "optimizer": self.question.optimizer,
            "objective": self.objective,
            "counts": asdict(self.counts) | {"cuts": self.cuts_excluded},
            "why": list(self.why),
            "layouts": self.rows(),
        }

    @property
    def title(self) -> str:
        question, cluster = self.question, self.question.cluster
        return (
            f"{question.model.name} on up to {cluster.nodes} nodes of {cluster.name}, {question.trainer.name},"
            f" {question.precision}, {question.optimizer}: best in {BEST_IN[self.objective]}"
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        if not self.candidates:
            return [self.impossible]
        formula = self.question.trainer.prints
        said = [f"TFLOPs per device by the formula {formula}. Mem: the fullest stage, predicted, in GiB."]
        if self.ties:
            tied = f"{TIE} {len(self.ties)} of these tie with the first"
            said.append(f"{tied}: the difference is within what the cost model can tell.")
        widest, share = self.best.uncertain_most_about, self.best.uncertain_by
        return [*said, f"The interval is widest for {widest}, which alone may move the time by ±{share:.0%}."]

    @property
    def left_out(self) -> str:
        """What was refused and why, counted."""
        counts = self.counts
        said = f"{counts.feasible:,} layouts fit, of {counts.considered:,}: {counts.memory:,} need more memory,"
        rule = f"a rule of {self.question.trainer.name}'s schedules, recompute or ZeRO"
        said += f" {counts.refused:,} are refused by {rule}."
        cuts = "; ".join(f"{count:,} because {reason}" for reason, count in self.cuts_excluded.items() if count)
        return said + (f" Ways to cut the devices left out before: {cuts}." if cuts else "")

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[RankedLayout]:
        return iter(self.candidates)

    def tables(self) -> list[TitledTable]:
        why = ["Why this one. " + " ".join(self.why)] if self.why else []
        rows = [each.cells() for each in self.candidates]
        return [TitledTable(self.title, (*HEADER, *MORE), rows, LEFT, [*self.notes, *why, self.left_out])]


def make_plan(question: Question, top: int = 10, objective: Objective = "time", variants: bool = False) -> Plan:
    """Every layout the rules allow, costed; the `top` best of those that fit.

    `variants`: also list the slower ZeRO stages, recompute modes and schedules of the same dp, tp, pp and micro batch.
    """
    found = search(question, objective, keep=max(top, KEPT))
    if not len(found):
        return Plan(question, objective, (), (), found)
    cuts = best_of_each_cut(found)
    shown = (found if variants else cuts).take(slice(top))
    why = reasons(question, cuts, objective)
    return Plan(question, objective, ranked_layouts(question, shown, objective), tuple(why), cuts)


def ranked_layouts(question: Question, ranking: Ranking, objective: str = "time") -> tuple[RankedLayout, ...]:
    """Each row with its interval, the parts of its step, and whether it ties with the first."""
    off = interval(ranking.rows, question.cluster, question.trainer)
    parts = step_breakdown(ranking.rows, question.cluster, question.trainer)
    shares, tied = parts.shares(), ties(ranking, off, objective)
    return tuple(
        RankedLayout(
            question=question,
            rank=i + 1,
            layout=ranking.layout(i),
            seconds=float(ranking.seconds[i]),
            seconds_low=float(off.low[i]),
            seconds_high=float(off.high[i]),
            uncertain_most_about=off.dominant[i],
            uncertain_by=float(off.dominant_share[i]),
            memory_gib=float(ranking.memory_gib[i]),
            bubble=float(parts.predicted.time.bubble[i]),
            shares={name: float(share[i]) for name, share in shares.items()},
            limited_by=parts.bottleneck(i),
            tie=bool(tied[i]),
            score=float(ranking.score[i]),
        )
        for i in range(len(ranking))
    )


def ties(ranking: Ranking, off: Interval, objective: str = "time") -> npt.NDArray[np.bool_]:
    """Which rows the cost model cannot tell from the first.

    Most of an interval is common to all layouts of one model on one machine (how fast its GEMMs are, say) and cancels
    in a comparison. We take half of the variance to be common, so the difference of two log times has half the sum of
    their variances; a tie is a difference within the same coverage as the intervals. Memory has no interval, so nothing
    ties there.
    """
    if objective == "memory":
        return np.asarray(np.arange(len(ranking)) == 0)
    deviation = np.log(off.high / off.low) / 2  # already at the interval's coverage
    distance = np.abs(np.log(ranking.score / ranking.score[0]))
    return np.asarray(distance <= np.sqrt((deviation**2 + deviation[0] ** 2) / 2))
