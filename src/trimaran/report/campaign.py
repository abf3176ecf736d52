"""Campaign: trials that belong together, each with its prediction; the answer they give, and the plan beside it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from trimaran.cost.predict import predict_jobs
from trimaran.learn.trials import predictable_job
from trimaran.ledger.audit import Finding
from trimaran.planner.plan import Plan
from trimaran.spec import Job, Trial


@dataclass(frozen=True)
class TrialPrediction:
    seconds: float
    low: float
    high: float
    memory_gib: float  # of the stage that was measured: the fullest of our runs, the first of published rows
    fits: bool


@dataclass(frozen=True)
class Row:
    trial: Trial
    label: str  # unique among the rows
    predicted: TrialPrediction | None  # None where the trial does not state enough

    @property
    def seconds(self) -> float | None:
        """As measured, of a trial that succeeded."""
        return self.trial.outcome.seconds if self.trial.outcome.status == "ok" else None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None or self.seconds is None else self.predicted.seconds / self.seconds - 1

    @property
    def failed(self) -> bool:
        return self.trial.outcome.status not in ("ok", "pending", "running")


@dataclass(frozen=True)
class Campaign:
    name: str
    about: str  # trials, frameworks, devices and models, in a sentence
    rows: tuple[Row, ...]  # the fastest per sample first, failures last
    best: frozenset[str]  # ids: the fastest of each model and batch
    comparable: tuple[Row, ...]  # measured, of one model and batch, the fastest first: that is the answer
    job: Job | None  # of the fastest, where enough is known
    plan: Plan | None  # the planner's answer to the same question
    findings: tuple[Finding, ...]
    commands: tuple[str, ...]  # that reproduce it

    @property
    def winner(self) -> Row | None:
        return self.comparable[0] if self.comparable else None

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)


def rows_of(trials: Sequence[Trial], before: Mapping[str, TrialPrediction] | None = None) -> tuple[Row, ...]:
    """The fastest per sample first, those without a time last. `before`: a sweep's own predictions, by Job as JSON."""
    predicted = _predict(trials)
    if before:
        predicted |= {trial.id: before[key] for trial in trials if trial.job and (key := trial.job.to_json()) in before}
    ordered = sorted(trials, key=_seconds_per_sample)
    return tuple(
        Row(trial, label, predicted.get(trial.id)) for trial, label in zip(ordered, _labels(ordered), strict=True)
    )


def _predict(trials: Sequence[Trial]) -> dict[str, TrialPrediction]:
    """By id. A run's Job is predicted on the cluster as it was then; a row of a table or log on the preset's."""
    jobs = [(trial, job) for trial in trials if (job := predictable_job(trial)) is not None]
    predictions = predict_jobs([job for _, job in jobs])
    return {
        trial.id: TrialPrediction(p.seconds, p.low, p.high, p.fullest_gib if trial.job else p.first_stage_gib, p.fits)
        for (trial, _), p in zip(jobs, predictions, strict=True)
    }


def _seconds_per_sample(trial: Trial) -> float:
    seconds, gbs = trial.outcome.seconds, trial.setup.gbs
    return seconds / gbs if seconds and gbs and trial.outcome.status == "ok" else inf


def _labels(trials: Sequence[Trial]) -> list[str]:
    """A sweep's own labels; else the layout, with the row's name where several have the same."""
    labels = [
        trial.source.label if trial.source.kind == "run" and trial.source.label else short_setup(trial)
        for trial in trials
    ]
    count = Counter(labels)
    return [
        label if count[label] == 1 else f"{label} ({trial.source.label or trial.id})"
        for label, trial in zip(labels, trials, strict=True)
    ]


def short_setup(trial: Trial) -> str:
    setup = trial.setup
    sizes = {"dp": setup.dp, "tp": setup.tp, "pp": setup.pp, "mbs": setup.mbs}
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size is not None) or trial.id
