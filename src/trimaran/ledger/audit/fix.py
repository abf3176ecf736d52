"""A trial with the corrections that its findings force: kept beside the printed one, never instead of it."""

from collections.abc import Iterable
from typing import Any

from trimaran.ledger.audit.finding import Finding
from trimaran.ledger.reading import trial_id
from trimaran.spec import Trial

OUTCOME = {"sec_per_it": "seconds", "tflops": "tflops", "tflops_formula": "tflops_formula"}


def forced(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Trial -> all corrections of its findings. The first finding about a field has the last word."""
    corrections: dict[str, dict[str, Any]] = {}
    for finding in findings:
        for field, value in finding.corrections.items():
            corrections.setdefault(finding.trial, {}).setdefault(field, value)
    return corrections


def apply(trial: Trial, corrections: dict[str, Any]) -> Trial:
    outcome = {OUTCOME[field]: value for field, value in corrections.items() if field in OUTCOME}
    setup = {field: value for field, value in corrections.items() if field not in OUTCOME}
    return trial.model_copy(
        update={
            "setup": trial.setup.model_copy(update=setup),
            "outcome": trial.outcome.model_copy(update=outcome),
        }
    )


def corrected(trials: Iterable[Trial], findings: Iterable[Finding]) -> list[Trial]:
    """A new trial for each that has a forced correction; it names the one it corrects."""
    corrections = forced(findings)
    return [
        apply(trial, corrections[trial.id]).model_copy(
            update={
                "id": trial_id("corrected", trial.id, corrections[trial.id]),
                "corrects": trial.id,
                "corrections": corrections[trial.id],
            }
        )
        for trial in trials
        if trial.id in corrections
    ]
