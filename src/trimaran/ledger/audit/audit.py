"""The order of the checks (each row by itself, then what its source says of it, then rows against each other), and the
corrected view of trials that results, report, score and learn all read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.ledger.audit.counts import check_batch, check_devices, check_memory, check_stages, check_straggler
from trimaran.ledger.audit.finding import LEVELS, Finding
from trimaran.ledger.audit.groups import check_groups
from trimaran.ledger.audit.rates import check_rate, expected_tags, section_formulas, with_seconds
from trimaran.ledger.audit.sizes import check_label, check_one_liner, check_really
from trimaran.ledger.reading import Reading, Remark, trial_id
from trimaran.spec import Trial

OUTCOME = {"sec_per_it": "seconds", "tflops": "tflops", "tflops_formula": "tflops_formula"}


def _findings(
    printed: Sequence[Trial], remarks: Sequence[Remark], formulas: dict[tuple[str, str], str]
) -> list[Finding]:
    """Everything wrong with these trials, worst first."""
    by_id = {trial.id: trial for trial in printed}
    remarks = sorted(remarks, key=lambda r: (r.file, r.line, r.kind, r.text, r.trials))
    stated = {id_: r.values["gbs"] for r in remarks if r.kind == "stated" for id_ in r.trials}
    really = {id_: r.values["size_label"] for r in remarks if r.kind == "really" for id_ in r.trials}
    findings: list[Finding] = []
    for trial in printed:
        findings += check_stages(trial)
        findings += check_memory(trial)
        findings += check_straggler(trial)
        if trial.job is not None:
            continue  # we ran it: nobody copied its numbers, and its Job was checked when it was made
        devices = list(check_devices(trial, expected_tags(trial, formulas)))
        dp = forced(devices).get(trial.id, {}).get("dp", trial.setup.dp)
        findings += devices
        findings += check_batch(trial, dp)
        findings += check_label(trial)
        findings += check_rate(trial, formulas, stated.get(trial.id))
    for remark in remarks:
        if remark.kind == "really":
            findings += check_really(remark, by_id)
        elif remark.kind == "one-liner":
            label = next((really[id_] for id_ in remark.trials if id_ in really), None)
            findings += check_one_liner(remark, by_id, label)
    corrections = forced(findings)
    right = [apply_corrections(trial, corrections.get(trial.id, {})) for trial in printed]
    findings += check_groups([with_seconds(trial, expected_tags(trial, formulas)) for trial in right])
    explained = {f.trial for f in findings if f.check == "one-liner"}
    findings = [f for f in findings if not (f.check == "flops" and f.trial in explained)]
    order = {trial.id: i for i, trial in enumerate(printed)}
    return sorted(findings, key=lambda f: (list(LEVELS).index(f.level), order[f.trial]))


def forced(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Trial -> all corrections of its findings. Where two correct the same field, the first finding wins."""
    corrections: dict[str, dict[str, Any]] = {}
    for finding in findings:
        for field, value in finding.corrections.items():
            corrections.setdefault(finding.trial, {}).setdefault(field, value)
    return corrections


def apply_corrections(trial: Trial, corrections: dict[str, Any]) -> Trial:
    outcome = {OUTCOME[field]: value for field, value in corrections.items() if field in OUTCOME}
    setup = {field: value for field, value in corrections.items() if field not in OUTCOME}
    return trial.model_copy(
        update={
            "setup": trial.setup.model_copy(update=setup),
            "outcome": trial.outcome.model_copy(update=outcome),
        }
    )


@dataclass(frozen=True)
class Corrected:
    """Each trial once: as printed, or with its forced corrections applied (`corrects` then names the printed one)."""

    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]
    formulas: dict[tuple[str, str], str]  # the TFLOPs formula of each section of a source

    @property
    def corrections(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.corrects is not None]

    def timed(self) -> list[Trial]:
        """The same with the seconds that TFLOPs imply where a source prints only those, and a note of it.

        Not where the environment was changed for the measurement, such as CUDA_LAUNCH_BLOCKING=1.
        """
        return [trial if trial.setup.environment else self._timed(trial) for trial in self.trials]

    def _timed(self, trial: Trial) -> Trial:
        timed = with_seconds(trial, expected_tags(trial, self.formulas))
        if timed is trial:
            return trial
        reason = "; ".join(part for part in (trial.outcome.reason, "seconds from its TFLOPs") if part)
        return timed.model_copy(update={"outcome": timed.outcome.model_copy(update={"reason": reason})})


def corrected(reading: Reading) -> Corrected:
    """The corrected view of what a file or a ledger holds. Corrections that a ledger has stored are computed anew.

    The order in which trials and remarks are given changes nothing: a ledger gives them in another than a file.
    """
    once = {trial.id: trial for trial in reading.trials if trial.corrects is None}
    printed = sorted(once.values(), key=lambda trial: (trial.source.file, trial.source.line or 0, trial.id))
    formulas = section_formulas(printed)
    findings = _findings(printed, reading.remarks, formulas)
    corrections = forced(findings)
    trials = [_correction(trial, corrections[trial.id]) if trial.id in corrections else trial for trial in printed]
    return Corrected(tuple(trials), tuple(findings), formulas)


def _correction(trial: Trial, corrections: dict[str, Any]) -> Trial:
    update = {"id": trial_id("corrected", trial.id, corrections), "corrects": trial.id, "corrections": corrections}
    return apply_corrections(trial, corrections).model_copy(update=update)
