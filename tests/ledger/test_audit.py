"""The audit finds every mistake that is known to be in the published figures, with its correction, and invents none."""

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.cost.flops import FORMULAS, TrainingStep, tflops_per_device
from trimaran.ledger.audit import Finding, corrected
from trimaran.ledger.published import published
from trimaran.ledger.reading import Reading
from trimaran.ledger.recognise import read_file
from trimaran.spec import Outcome, Setup, Source, Trial

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
# The column fixed_json of the shared published.csv: corrections that somebody else judged to be forced.
KNOWN: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "fixtures" / "corrections.json").read_text())


def audit(trials: Sequence[Trial]) -> tuple[Finding, ...]:
    return corrected(Reading(tuple(trials))).findings


def corrections(reading: Reading, key: str = "label") -> dict[Any, dict[str, Any]]:
    """What is forced, by the rows' own label or line."""
    found: dict[Any, dict[str, Any]] = defaultdict(dict)
    names = {trial.id: getattr(trial.source, key) for trial in reading.trials}
    for finding in corrected(reading).findings:
        if finding.level == "impossible":
            found[names[finding.trial]].update(finding.corrections)
    return dict(found)


def test_every_known_mistake_of_the_published_figures_is_found_and_nothing_else_is_impossible() -> None:
    assert corrections(published()) == KNOWN


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared measurements are not beside this checkout")
def test_the_audit_forces_exactly_what_the_original_csv_says_is_forced() -> None:
    path = SHARED / "measurements" / "published.csv"
    with path.open() as file:
        judged = {row["id"]: json.loads(row["fixed_json"]) for row in csv.DictReader(file) if row["fixed_json"]}
    assert judged == KNOWN
    assert corrections(read_file(path)) == judged


@pytest.mark.skipif(not SHARED.is_dir(), reason="the original notes are not beside this checkout")
@pytest.mark.parametrize("name", ["a100-prequel", "fugaku-30b-benchmark", "v100-104b-tuneup", "v100-1b3-benchmark"])
def test_the_same_mistakes_are_found_in_the_original_notes(name: str) -> None:
    """A row of the notes is the published row with its seconds and TFLOPs; corrections there are the known ones."""
    reading = read_file(SHARED / "notes" / f"{name}.md")
    forced = corrections(reading, "line")
    by_values = {(t.outcome.seconds, t.outcome.tflops): t.source.label for t in published(("published.csv",)).trials}
    for trial in reading.trials:
        label = by_values.get((trial.outcome.seconds, trial.outcome.tflops))
        if label is None or trial.outcome.seconds is None:
            continue
        found = forced.get(trial.source.line, {})
        if "size_label" in found:  # these notes also show the one-liner, whose constants force the TFLOPs
            found.pop("tflops")
        known = dict(KNOWN.get(label, {}))
        if trial.setup.ffn_hidden is None:  # the notes leave out what a size would be counted from
            known.pop("size_label", None)
            found.pop("size_label", None)
        assert found == known, label


def finding(findings: list[Finding], check: str, where: str) -> Finding:
    (found,) = [f for f in findings if f.check == check and where in f.where]
    return found


def test_contradictions_without_a_forced_correction_are_named() -> None:
    findings = corrected(published()).findings
    assert finding(findings, "memory", "s000-L305").level == "contradictory"
    assert "+26.5%" in finding(findings, "scaling", "s000-L447").message
    assert "-13.9%" in finding(findings, "scaling", "s001-L017").message
    assert finding(findings, "stages", "s001-L034").level == "contradictory"
    assert finding(findings, "stages", "s000-L483").level == "suspicious"
    assert "21 GB" in finding(findings, "memory", "s002-L029").message
    assert "02-23 and 02-24" in finding(findings, "repeat", "s000-L431").message
    assert "23.54B" in finding(findings, "size", "s000-L060").message


def test_one_liners_with_wrong_constants_are_recomputed() -> None:
    """58e9 x 4 x 2 x 2048 x 1024 / (256 s x 128 devices) = 29.70 TFLOPs, by hand."""
    reading = read_file(ROOT / "examples" / "notes" / "v100-tuneups.md")
    findings = corrected(reading).findings
    found = [f for f in findings if f.check == "one-liner"]
    assert found[0].corrections == {"tflops": pytest.approx(29.70, abs=0.005)}
    assert "a sequence of 1024 instead of 2048" in found[0].message
    assert "a batch of 1048 instead of 1024" in found[0].message
    assert len(found) == 3


# --- mistakes planted into consistent rows --------------------------------------------------------------------------

SETUP = Setup(
    device="a100-80gb",
    devices_per_node=8,
    nodes=48,
    devices=384,
    size_label="181B",
    layers=72,
    hidden=14336,
    ffn_hidden=57344,
    heads=64,
    seq_len=2048,
    vocab=250880,
    dp=8,
    tp=8,
    pp=6,
    mbs=4,
    gbs=2048,
    recompute="full",
    precision="fp16",
)


def honest(seconds: float, formula: str = "bigscience-exact", **changes: Any) -> Trial:
    """A trial whose TFLOPs follow from its seconds."""
    setup = SETUP.model_copy(update=changes)
    model = setup.to_model()
    assert model is not None
    step = TrainingStep(model, setup.gbs, setup.tp or 1, "full")
    tflops = round(tflops_per_device(FORMULAS[formula](step), seconds, setup.devices), 2)
    outcome = Outcome(status="ok", seconds=seconds, tflops=tflops, tflops_formula="exact")
    name = f"{seconds:.4f}/{sorted(changes.items())}"
    return Trial(id=name, setup=setup, outcome=outcome, source=Source(kind="csv", file="f.csv", label=name, date="1"))


def planted(trial: Trial, **wrong: Any) -> Trial:
    outcome = {k: v for k, v in wrong.items() if k in Outcome.model_fields}
    setup = {k: v for k, v in wrong.items() if k in Setup.model_fields}
    return trial.model_copy(
        update={
            "setup": trial.setup.model_copy(update=setup),
            "outcome": trial.outcome.model_copy(update=outcome),
        }
    )


def forced(trials: list[Trial]) -> dict[str, Any]:
    return {name: v for f in audit(trials) if f.level == "impossible" for name, v in f.corrections.items()}


@settings(max_examples=60)
@given(st.floats(100, 400).map(lambda s: round(s, 2)), st.sampled_from([1, 2, 4, 8]))
def test_an_honest_row_is_never_called_impossible(seconds: float, mbs: int) -> None:
    assert [f for f in audit([honest(seconds, mbs=mbs)]) if f.level != "suspicious"] == []


@settings(max_examples=60)
@given(st.floats(100, 400).map(lambda s: round(s, 2)))
def test_planted_milliseconds_are_corrected(seconds: float) -> None:
    trial = honest(seconds)
    assert forced([planted(trial, seconds=seconds * 1000)]) == {"sec_per_it": pytest.approx(seconds)}


@settings(max_examples=60)
@given(st.floats(100, 400).map(lambda s: round(s, 2)), st.sampled_from([1, 2, 4, 16, 32]))
def test_a_planted_dp_is_corrected(seconds: float, dp: int) -> None:
    assert forced([planted(honest(seconds), dp=dp)]) == {"dp": 8}


@settings(max_examples=60)
@given(st.floats(100, 120).map(lambda s: round(s, 2)))
def test_a_planted_batch_beyond_the_peak_is_corrected(seconds: float) -> None:
    """Four times the batch would be over 500 TFLOP/s on a device whose peak is 312."""
    assert forced([planted(honest(seconds), gbs=8192)]) == {"gbs": 2048}


def test_a_halved_batch_is_contradictory_but_not_forced() -> None:
    findings = audit([planted(honest(140.0), gbs=1024)])
    assert [(f.level, f.check) for f in findings] == [("contradictory", "flops")]


def test_a_row_computed_by_another_formula_is_recognised() -> None:
    assert forced([honest(140.0, "bigscience-approx")]) == {"tflops_formula": "approx-4"}


def test_tflops_over_the_peak_are_swapped_with_the_seconds() -> None:
    trial = honest(400.0)  # 40 TFLOP/s; swapped it would be 400, over the peak of 312
    seconds, tflops = trial.outcome.seconds, trial.outcome.tflops
    swapped = planted(trial, seconds=tflops, tflops=seconds)
    assert forced([swapped]) == {"sec_per_it": seconds, "tflops": tflops}


def test_a_swap_below_the_peak_is_found_by_its_other_print_and_its_neighbours() -> None:
    trial = honest(250.0)  # 64 TFLOP/s
    swapped = planted(trial, seconds=trial.outcome.tflops, tflops=trial.outcome.seconds).model_copy(update={"id": "b"})
    assert [f.level for f in audit([trial, swapped]) if f.check == "swapped"] == ["contradictory"]
    findings = [f for f in audit([trial, swapped, honest(240.0, mbs=2)]) if f.check == "swapped"]
    assert [(f.level, f.trial, f.corrections["sec_per_it"]) for f in findings] == [("impossible", "b", 250.0)]


def test_memory_beyond_the_card_and_batches_that_do_not_divide_are_contradictory() -> None:
    findings = audit([planted(honest(140.0), memory_gib=96.0), planted(honest(150.0), mbs=3)])
    assert {(f.level, f.check) for f in findings} == {("contradictory", "memory"), ("contradictory", "batch")}


def test_the_corrected_view_names_the_printed_trial_and_is_not_audited_again() -> None:
    wrong = planted(honest(140.0), dp=4)
    findings = audit([wrong])
    view = corrected(Reading((wrong, honest(150.0, mbs=2))))
    fixed, untouched = view.trials
    assert (view.findings, view.corrections, untouched) == (findings, [fixed], honest(150.0, mbs=2))
    assert (fixed.corrects, fixed.corrections, fixed.setup.dp) == (wrong.id, {"dp": 8}, 8)
    assert fixed.id != wrong.id
    assert audit([wrong, fixed]) == findings
