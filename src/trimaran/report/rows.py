"""Trials as rows of a report: each with what tells it apart and what the cost model says of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from trimaran.cost.setups import predictable
from trimaran.lab.choose import Candidate, predict_candidates
from trimaran.learn.score import predict_trials
from trimaran.learn.trials import cluster_of, trainer_of
from trimaran.report.campaign import Expected, Row
from trimaran.spec import Mistake, Trial


def rows_of(trials: Sequence[Trial], before: Mapping[str, Expected] | None = None) -> tuple[Row, ...]:
    """The fastest per sample first; those without a time last. `before`: what a sweep expected of its Jobs, as JSON."""
    expected = _of_jobs(trials) | _of_setups([trial for trial in trials if trial.job is None])
    if before:
        expected |= {trial.id: before[key] for trial in trials if trial.job and (key := trial.job.to_json()) in before}
    ordered = sorted(trials, key=_seconds_per_sample)
    return tuple(
        Row(trial, label, expected.get(trial.id)) for trial, label in zip(ordered, _labels(ordered), strict=True)
    )


def expected_of(candidate: Candidate) -> Expected:
    return Expected(candidate.seconds, candidate.low, candidate.high, candidate.memory_gib, candidate.fits)


def _seconds_per_sample(trial: Trial) -> float:
    seconds, gbs = trial.outcome.seconds, trial.setup.gbs
    return seconds / gbs if seconds and gbs and trial.outcome.status == "ok" else inf


def _of_jobs(trials: Sequence[Trial]) -> dict[str, Expected]:
    """Of whole Jobs, by the cluster as each knew it when it ran."""
    jobs = [(trial.id, trial.job) for trial in trials if trial.job is not None]
    return {candidate.label: expected_of(candidate) for candidate in predict_candidates(jobs)}


def _of_setups(trials: Sequence[Trial]) -> dict[str, Expected]:
    """Of rows of tables and logs, which people measured on the first node."""
    known = [trial for trial in trials if predictable(trial.setup) and _has_presets(trial)]
    found = [(row.trial.id, row.prediction) for row in predict_trials(known)]
    return {id: Expected(p.seconds, p.low, p.high, p.first_stage_gib, p.fits) for id, p in found}


def _has_presets(trial: Trial) -> bool:
    try:
        cluster_of(trial), trainer_of(trial)
    except Mistake:
        return False
    return True


def _labels(trials: Sequence[Trial]) -> list[str]:
    """The sweep's own words of its trials; else the layout, with the row's name where several have the same."""
    labels = [
        trial.source.label if trial.source.kind == "run" and trial.source.label else layout_of(trial)
        for trial in trials
    ]
    often = Counter(labels)
    return [
        label if often[label] == 1 else f"{label} ({trial.source.label or trial.id})"
        for label, trial in zip(labels, trials, strict=True)
    ]


def layout_of(trial: Trial) -> str:
    setup = trial.setup
    sizes = {"dp": setup.dp, "tp": setup.tp, "pp": setup.pp, "mbs": setup.mbs}
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size is not None) or trial.id
