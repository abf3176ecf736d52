"""A sweep's report, the files for slides, and the errors of a report that cannot be made."""

import csv
import json
import os
import struct
import subprocess
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from tests.lab.sweeps import sweep_file, swept
from tests.report.conftest import PATIENCE, TRIMARAN, OneCampaign, trimaran
from trimaran.ledger.store import Ledger


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """Real trials: one that trains, and one that fails because its data is missing."""
    folder = tmp_path_factory.mktemp("sweep")
    alternatives = [{"layout.micro_batch": 8}, {"data.source": "nowhere/tokens"}]
    sweep_file(folder, alternatives=alternatives)
    return folder, swept(folder, "s.yaml")


def test_a_sweeps_report_has_what_was_measured_what_was_predicted_before_and_why_a_trial_failed(
    sweep: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    folder, answers = sweep
    page = tmp_path / "report.html"
    done = trimaran(
        "report", "--sweep", str(folder / "sweeps/s"), "-o", str(page), "--json", ledger=folder / "trimaran.sqlite"
    )
    assert done.returncode == 0, done.stderr
    (campaign,) = json.loads(done.stdout)["campaigns"]
    trials = {trial["id"]: trial for trial in answers["trials"]}  # type: ignore[attr-defined]
    assert campaign["trials"] == 2
    assert campaign["best"] == answers["best"]
    assert campaign["seconds"] == trials[answers["best"]]["seconds"]
    assert campaign["predicted"] == trials[answers["best"]]["predicted"]
    (failed,) = [trial for trial in trials.values() if trial["status"] == "fail"]
    text = page.read_text()
    assert failed["reason"] in text
    assert "nowhere/tokens" in text.partition("Failures")[2]


def test_every_figure_becomes_a_picture_for_a_slide_and_the_rows_behind_it(
    ledger: Path, one_campaign: OneCampaign
) -> None:
    folder = one_campaign.figures
    names = {"seconds", "memory", "parts", "accuracy", "heat-pp-tp", "heat-mbs-tp", "nodes", "timeline"}
    assert {path.name for path in folder.iterdir()} == {f"{n}.{s}" for n in names for s in ("svg", "png", "csv")}
    for name in names:
        png = (folder / f"{name}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", png[16:24]) == (1280, 720)
        drawn = ET.parse(folder / f"{name}.svg").getroot()
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 3
    with Ledger.read(ledger) as store:
        measured = sorted(
            trial.outcome.seconds
            for trial in store.trials()
            if trial.setup.size_label == "181B" and trial.setup.gbs == 2048 and trial.outcome.seconds
        )
    rows = table(folder / "seconds.csv")
    assert {float(row["measured_s"]) for row in rows} <= set(measured)
    assert float(rows[0]["measured_s"]) == measured[0]
    for row in table(folder / "memory.csv"):
        parts = [
            float(value) for name, value in row.items() if name.endswith("_gib") and name[:5] not in ("total", "measu")
        ]
        assert sum(parts) == pytest.approx(float(row["total_gib"]))
    spans = table(folder / "timeline.csv")
    for stage in {span["stage"] for span in spans}:
        times = sorted((float(span["start_s"]), float(span["end_s"])) for span in spans if span["stage"] == stage)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(times))


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "nothing"), "No sweep was started in nothing"),
        (("--published", "tp=4"), "conditions and --published were given"),
        (("--published", "--sweep", "x"), "--sweep and --published were given"),
        (("--job", "nothing"), "There is no file nothing"),
        (("tp=999",), "no trial that matches these conditions"),
        (("tp",), "'tp' is no condition"),
        (("--published", "-o", "no/such/folder/r.html"), "no/such/folder/r.html cannot be written"),
    ],
)
def test_what_cannot_be_reported_gets_a_sentence_and_no_file(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = trimaran("report", *arguments, ledger=ledger)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_job_that_nobody_ran_gets_the_planners_answer(ledger: Path, tmp_path: Path) -> None:
    job = str(Path(__file__).parents[2] / "examples/jobs/bloom-176b.yaml")
    answers = json.loads(
        trimaran("report", "--job", job, "-o", str(tmp_path / "p.html"), "--json", ledger=ledger).stdout
    )
    (answer,) = answers["campaigns"]
    best = json.loads(trimaran("plan", "--compare", job, "--json", ledger=ledger).stdout)["layouts"][0]
    assert answer["seconds"] is None
    assert answer["predicted"] == pytest.approx(best["seconds"])
    assert answer["layout"] == f"DP {best['dp']} × TP {best['tp']} × PP {best['pp']}, micro batch {best['micro_batch']}"
    assert "bloom-176b, as it is" in (tmp_path / "p.html").read_text()


def test_pictures_need_a_browser_and_without_one_a_sentence_says_which(ledger: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TRIMARAN_LEDGER": str(ledger), "BROWSER_PATH": str(tmp_path / "no-browser")}
    command = [*TRIMARAN, "report", "size=181B", "tp=4", "-o", "r.html", "--figures", "f"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "install chromium" in done.stderr
