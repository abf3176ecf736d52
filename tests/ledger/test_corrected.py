"""A file, the ledger it was imported into and the report have the same findings, and everything that computes with
measurements (results, report, score, learn) reads them with the same forced corrections."""

from pathlib import Path
from typing import Any

import pytest

from tests.ledger.trials import whole_job
from trimaran.learn.trials import calibration_trials
from trimaran.ledger.audit import corrected
from trimaran.ledger.audit.finding import Finding
from trimaran.ledger.published import published
from trimaran.ledger.reading import Reading, joined
from trimaran.ledger.recognise import read_file
from trimaran.ledger.store import Added, Filter, Ledger
from trimaran.report.gather import ledger_campaigns, published_campaigns
from trimaran.spec import Trial

ROOT = Path(__file__).parents[2]
NOTES = sorted((ROOT / "examples" / "notes").glob("*.md"))
SHIPPED = ROOT / "src" / "trimaran" / "published" / "published.csv"


def notes() -> Reading:
    return joined(read_file(path) for path in NOTES)


def imported(path: Path, *readings: Reading) -> Path:
    with Ledger.open(path) as ledger:
        for reading in readings:
            ledger.add_reading("notes", reading)
            ledger.correct()
    return path


def held(path: Path) -> Reading:
    with Ledger.read(path) as ledger:
        return ledger.reading()


def by_label(findings: tuple[Finding, ...]) -> list[Any]:
    """Without the ids and paths, in which copies of one table differ."""
    return sorted((f.where.partition(" ")[0], f.level, f.check, str(f.corrections)) for f in findings)


def reported(path: Path) -> set[tuple[str, str, str]]:
    """Findings of a report on the ledger. A campaign lists those of its own rows only, so they have no common order."""
    with Ledger.read(path) as ledger:
        campaigns = ledger_campaigns(ledger, (), lambda said: None)
    return {(f.trial, f.check, str(f.corrections)) for campaign in campaigns for f in campaign.findings}


def test_the_notes_have_the_same_findings_from_files_from_the_ledger_and_in_the_report(tmp_path: Path) -> None:
    """26 findings with 13 forced corrections, of which six need what the notes say outside of their tables."""
    from_files = corrected(notes())
    path = imported(tmp_path / "ledger.sqlite", *(read_file(path) for path in reversed(NOTES)))
    from_ledger = corrected(held(path))
    assert from_ledger.findings == from_files.findings
    assert reported(path) == {(f.trial, f.check, str(f.corrections)) for f in from_files.findings}
    assert (len(from_files.findings), len(from_files.corrections)) == (26, 13)
    assert sum(f.check in ("one-liner", "size") and bool(f.corrections) for f in from_files.findings) == 6


def test_the_published_rows_have_the_same_findings_by_every_way(tmp_path: Path) -> None:
    shipped = corrected(published())
    path = imported(tmp_path / "ledger.sqlite", published())
    assert corrected(held(path)).findings == shipped.findings
    assert reported(path) == {(f.trial, f.check, str(f.corrections)) for f in shipped.findings}
    of_the_table = tuple(f for f in shipped.findings if "published.csv" in f.where)
    as_a_file = joined([read_file(SHIPPED), published(("vtrain_single_node_a100.csv",))])
    theirs = tuple(f for f in corrected(as_a_file).findings if "published.csv" in f.where)
    assert by_label(theirs) == by_label(of_the_table)
    campaigns = published_campaigns(lambda said: None)
    assert by_label(tuple(f for campaign in campaigns for f in campaign.findings)) == by_label(of_the_table)


def test_ledger_report_and_learn_use_every_forced_correction(tmp_path: Path) -> None:
    view = corrected(notes())
    fixed = {trial.corrects: (trial.setup, trial.outcome) for trial in view.corrections}
    path = imported(tmp_path / "ledger.sqlite", notes())
    with Ledger.read(path) as ledger:
        stored = [trial for trial in ledger.trials() if trial.corrects]
        campaigns = ledger_campaigns(ledger, (), lambda said: None)
    assert {trial.corrects: (trial.setup, trial.outcome) for trial in stored} == fixed
    rows = [row.trial for campaign in campaigns for row in campaign.rows]
    assert {trial.corrects: (trial.setup, trial.outcome) for trial in rows if trial.corrects} == fixed
    used = calibration_trials(held(path))
    learned = {trial.corrects: (trial.setup, trial.outcome) for trial in used if trial.corrects}
    (impossible,) = [trial for trial in view.corrections if (trial.setup.pp or 0) > (trial.setup.layers or 0)]
    assert learned == {key: value for key, value in fixed.items() if key != impossible.corrects}  # 64 stages, 32 layers


def test_filters_select_corrected_rows_and_all_rows_are_evidence(tmp_path: Path) -> None:
    path = imported(tmp_path / "ledger.sqlite", notes())
    with Ledger.read(path) as ledger:
        everything = ledger.corrected()
        for size in ("58B", "104B", "181B"):
            view = ledger.corrected([Filter("size_label", "=", size)])
            assert view.trials == tuple(t for t in everything.trials if t.setup.size_label == size)
            assert view.findings == everything.findings


def test_importing_again_adds_nothing_and_a_sentence_that_was_taken_back_is_forgotten(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "notes" / "v100-tuneups.md").read_text()
    source = tmp_path / "notes.md"
    source.write_text(text)
    path = imported(tmp_path / "ledger.sqlite", read_file(source))
    before = held(path)
    with Ledger.open(path) as ledger:
        again = read_file(source)
        assert ledger.add_reading("notes", again) == Added(known=len(again.trials))
        ledger.correct()
    assert held(path) == before
    source.write_text(text.replace("really", "perhaps"))
    edited = read_file(source)
    imported(path, edited)
    assert corrected(held(path)).findings == corrected(edited).findings
    assert not any("size_label" in trial.corrections for trial in corrected(edited).corrections)
    with Ledger.read(path) as ledger:
        stored = {trial.id for trial in ledger.trials() if trial.corrects}
    assert stored == {trial.id for trial in corrected(edited).corrections}


def test_trials_of_another_source_leave_the_remarks_alone(tmp_path: Path) -> None:
    path = imported(tmp_path / "ledger.sqlite", notes())
    before = held(path).remarks
    with Ledger.open(path) as ledger:
        ledger.add_reading("published figures", published())
        ledger.add(notes().trials)  # without remarks: the stored ones stay
    assert held(path).remarks == before


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_trials_and_remarks_changes_no_finding(order: int) -> None:
    reading = notes()
    shuffled = Reading(reading.trials[5:][::order] + reading.trials[:5], remarks=reading.remarks[::order])
    assert corrected(shuffled) == corrected(reading)


def test_what_we_ran_ourselves_is_never_corrected() -> None:
    """A Job with context parallelism has dp x tp x pp below its devices, which would be wrong in a printed table."""
    printed = Trial.of(
        {
            "id": "run",
            "setup": {"dp": 2, "tp": 1, "pp": 1, "devices": 4, "layers": 24, "hidden": 2048, "size_label": "9B"},
            "outcome": {"status": "ok", "seconds": 2.0, "tflops": 999.0},
            "source": {"kind": "run"},
        }
    )
    assert {f.check for f in corrected(Reading((printed,))).findings} == {"devices", "size"}
    assert corrected(Reading((printed.model_copy(update={"job": whole_job()}),))).findings == ()
