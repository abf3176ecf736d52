"""The order of the checks: each row by itself, then what the source says of it, then rows against each other."""

from collections.abc import Sequence

from trimaran.ledger.audit.counts import check_batch, check_devices, check_memory, check_stages
from trimaran.ledger.audit.finding import LEVELS, Finding
from trimaran.ledger.audit.fix import apply, forced
from trimaran.ledger.audit.groups import check_groups
from trimaran.ledger.audit.labels import check_label
from trimaran.ledger.audit.rates import check_rate, expected_tags, section_formulas, with_seconds
from trimaran.ledger.audit.remarks import check_one_liner, check_really
from trimaran.ledger.reading import Remark
from trimaran.spec import Trial


def audit(trials: Sequence[Trial], remarks: Sequence[Remark] = ()) -> list[Finding]:
    """Everything wrong with these trials, worst first. Trials that are corrections themselves are not judged."""
    printed = [trial for trial in trials if trial.corrects is None]
    by_id = {trial.id: trial for trial in printed}
    formulas = section_formulas(printed)
    stated = {id_: r.values["gbs"] for r in remarks if r.kind == "stated" for id_ in r.trials}
    really = {id_: r.values["size_label"] for r in remarks if r.kind == "really" for id_ in r.trials}
    findings: list[Finding] = []
    for trial in printed:
        tags = expected_tags(trial, formulas)
        devices = list(check_devices(trial, tags))
        dp = forced(devices).get(trial.id, {}).get("dp", trial.setup.dp)
        findings += devices
        findings += check_batch(trial, dp)
        findings += check_stages(trial)
        findings += check_memory(trial)
        findings += check_label(trial)
        findings += check_rate(trial, formulas, stated.get(trial.id))
    for remark in remarks:
        if remark.kind == "really":
            findings += check_really(remark, by_id)
        elif remark.kind == "one-liner":
            label = next((really[id_] for id_ in remark.trials if id_ in really), None)
            findings += check_one_liner(remark, by_id, label)
    corrections = forced(findings)
    right = [apply(trial, corrections.get(trial.id, {})) for trial in printed]
    findings += check_groups([with_seconds(trial, expected_tags(trial, formulas)) for trial in right])
    explained = {f.trial for f in findings if f.check == "one-liner"}
    findings = [f for f in findings if not (f.check == "flops" and f.trial in explained)]
    order = {trial.id: i for i, trial in enumerate(printed)}
    return sorted(findings, key=lambda f: (LEVELS.index(f.level), order[f.trial]))
