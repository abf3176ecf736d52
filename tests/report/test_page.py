"""The report in a real browser: figures, sorting, filters, themes, printing; and its numbers are the ledger's."""

import csv
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.report.conftest import OneCampaign, OpenPage, trimaran
from trimaran.ledger.store import Ledger
from trimaran.spec import Outcome, Setup, Source, Trial
from trimaran.spec.files import load_job

A100 = "#campaign-1"
TABLE = f"{A100} table.trials"


def column(opened: OpenPage, name: str) -> list[dict[str, str | None]]:
    """Trial, text and unrounded value of the visible rows."""
    script = """(table, name) => {
        const place = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === name);
        return [...table.tBodies[0].rows].filter((row) => row.offsetParent !== null).map((row) => {
            const cell = row.cells[place];
            return {trial: row.dataset.trial, text: cell.textContent, value: cell.dataset.value ?? null};
        });
    }"""
    return opened.page.locator(TABLE).evaluate(script, name)


def test_every_figure_is_drawn_without_console_messages_and_without_a_network(opened: OpenPage) -> None:
    plots = opened.page.locator(".plot")
    assert plots.count() >= 40
    for plot in plots.all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg.main-svg").first).to_be_visible()
    drawn = plots.evaluate_all("plots => plots.map(plot => plot.querySelectorAll('path, rect, image').length)")
    assert min(drawn) > 3
    assert opened.logged == []
    assert {url.partition(":")[0] for url in opened.requested} <= {"file", "data", "blob"}


def test_the_answer_comes_first_and_is_what_the_notes_concluded(opened: OpenPage) -> None:
    answer = opened.page.locator(f"{A100} .answer")
    assert opened.page.evaluate("document.querySelector('article h2 ~ section').classList.contains('answer')")
    expect(answer.locator(".layout")).to_have_text("DP 8 × TP 4 × PP 12, micro batch 2")
    expect(answer).to_contain_text("48 nodes")
    assert float(answer.locator("dd[data-value]").get_attribute("data-value") or 0) == 110.48
    best = opened.page.locator(f"{TABLE} tr.best").first
    assert best.get_attribute("data-trial") == answer.get_attribute("data-trial")


def test_the_numbers_on_the_page_are_those_of_the_ledger(opened: OpenPage, ledger: Path) -> None:
    with Ledger.read(ledger) as store:
        trials = {trial.id: trial for trial in store.trials()}
    replaced = {trial.corrects for trial in trials.values() if trial.corrects}
    names = {"Sec/it": "seconds", "Mem": "memory_gib", "TFLOPs": "tflops"}
    for name, field in names.items():
        shown = {row["trial"]: row["value"] for row in column(opened, name)}
        expected = {trial: getattr(trials[str(trial)].outcome, field) for trial in shown}
        implied = {trial for trial in shown if field == "seconds" and expected[trial] is None}  # by their TFLOPs
        assert {t: v and float(v) for t, v in shown.items() if t not in implied} == {
            t: v for t, v in expected.items() if t not in implied
        }
        assert not replaced & set(shown)
    for name, field in {"DP": "dp", "TP": "tp", "PP": "pp", "MBS": "mbs", "GBS": "gbs", "Nodes": "nodes"}.items():
        shown = {row["trial"]: row["text"] for row in column(opened, name)}
        assert shown == {trial: str(getattr(trials[str(trial)].setup, field) or "") for trial in shown}
    campaign = [t for t in trials.values() if t.source.section.startswith("A100 experiments") and t.id not in replaced]
    assert set(shown) == {trial.id for trial in campaign}


def test_the_predictions_beside_the_rows_are_those_of_predict(opened: OpenPage, tmp_path: Path, ledger: Path) -> None:
    """Both of rows as printed: `predict` corrects nothing, so rows with a correction are left out."""
    published = Path(__file__).parents[2] / "src/trimaran/published/published.csv"
    done = trimaran("predict", str(published), "-o", str(tmp_path / "predicted.csv"), ledger=ledger)
    assert done.returncode == 0
    with (tmp_path / "predicted.csv").open() as file:
        predicted = {row["id"]: row["pred_sec_per_it"] for row in csv.DictReader(file)}
    with Ledger.read(ledger) as store:
        labels = {trial.id: trial.source.label for trial in store.trials() if trial.corrects is None}
    shown = {labels[str(row["trial"])]: row["value"] for row in column(opened, "predicted") if row["trial"] in labels}
    compared = {label: float(value) for label, value in shown.items() if value}
    assert len(compared) > 60
    assert compared == {label: pytest.approx(float(predicted[label]), rel=1e-4) for label in compared}


def test_a_click_on_a_column_sorts_by_its_numbers_and_a_second_reverses_it(opened: OpenPage) -> None:
    before = column(opened, "Sec/it")
    known = sorted(float(row["value"]) for row in before if row["value"])
    unknown = [None] * sum(row["value"] is None for row in before)
    assert unknown  # rows that ran out of memory
    button = opened.page.locator(f"{TABLE} th button", has_text="Sec/it")
    button.click()
    assert [row["value"] and float(row["value"]) for row in column(opened, "Sec/it")] == known + unknown
    button.click()
    assert [row["value"] and float(row["value"]) for row in column(opened, "Sec/it")] == known[::-1] + unknown


def test_filters_leave_the_matching_rows(opened: OpenPage, ledger: Path) -> None:
    filters = opened.page.locator(f"{A100} .filters")
    everything = {row["trial"] for row in column(opened, "TP")}
    with Ledger.read(ledger) as store:
        trials = {trial.id: trial for trial in store.trials() if trial.id in everything}
    filters.locator("label", has_text="TP").locator("select").select_option("8")
    wide = {trial.id for trial in trials.values() if trial.setup.tp == 8}
    assert {row["trial"] for row in column(opened, "TP")} == wide
    expect(filters.locator("output")).to_have_text(f"{len(wide)} of {len(everything)} rows")
    filters.locator("input").fill("02-25")
    dated = {trial.id for trial in trials.values() if trial.setup.tp == 8 and trial.source.date == "02-25"}
    assert {row["trial"] for row in column(opened, "TP")} == dated
    assert 0 < len(dated) < len(wide)


def test_impossible_rows_are_corrected_and_the_audit_says_why(opened: OpenPage) -> None:
    row = opened.page.locator(f"{TABLE} tr", has_text="s000-L319")
    expect(row).to_contain_text("corrected: dp=4")
    expect(opened.page.locator(A100)).to_contain_text("dp 8 x tp 8 x pp 10 = 640, not the 320 devices printed")


def test_the_job_of_the_fastest_can_be_saved_and_planned(opened: OpenPage, tmp_path: Path) -> None:
    with opened.page.expect_download() as saved:
        opened.page.locator(f"{A100} a[download]").click()
    saved.value.save_as(tmp_path / "job.yaml")
    layout = load_job(tmp_path / "job.yaml").layout
    assert (layout.dp, layout.tp, layout.pp, layout.micro_batch) == (8, 4, 12, 2)


def luminance(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_theme_of_the_system_and_the_button_toggles_it(
    browser: Browser, one_campaign: OneCampaign, scheme: str
) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    opened = OpenPage(page, one_campaign.page)
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    for expected in (scheme, "light" if scheme == "dark" else "dark"):
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = plot.locator("text").first.evaluate("text => getComputedStyle(text).fill")
        assert (luminance(paper) < 0.2) == (expected == "dark")
        assert abs(luminance(paper) - luminance(ink)) > 0.5
        page.locator("#theme").click()
    assert opened.logged == []
    page.close()


def test_printing_draws_all_figures_light_and_no_controls(
    browser: Browser, one_campaign: OneCampaign, tmp_path: Path
) -> None:
    page = browser.new_page(color_scheme="dark")
    OpenPage(page, one_campaign.page)
    page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert len(re.findall(rb"/Type\s*/Page[^s]", (tmp_path / "report.pdf").read_bytes())) >= 4
    undrawn = page.evaluate("[...document.querySelectorAll('.plot')].filter(plot => !plot.querySelector('svg')).length")
    assert undrawn == 0
    page.emulate_media(media="print")
    expect(page.locator("#theme")).to_be_hidden()
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == pytest.approx(1.0)
    page.close()


def test_text_of_a_log_or_table_is_escaped_and_never_runs(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><script>alert('ran')</script><img src=x onerror=alert('ran')>"
    setup = Setup(framework=evil, device=evil, size_label=evil, gbs=8, tp=1, pp=1, dp=1, mbs=1, layers=2, hidden=256)
    trial = Trial(
        id=evil,
        setup=setup,
        outcome=Outcome(status="ok", seconds=1.0, reason=evil),
        source=Source(kind="csv", file=evil, label=evil, section=evil),
    )
    with Ledger.open(tmp_path / "ledger.sqlite") as store:
        store.add([trial])
    done = trimaran("report", "-o", str(tmp_path / "report.html"), ledger=tmp_path / "ledger.sqlite")
    assert done.returncode == 0, done.stderr
    page = browser.new_page()
    opened = OpenPage(page, tmp_path / "report.html")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg.main-svg").first).to_be_visible()
    assert opened.logged == []
    assert page.locator("img").count() == 0
    assert page.locator("table.trials tbody tr").get_attribute("data-trial") == evil
    page.close()


def test_json_has_the_same_answers(ledger: Path, one_campaign: OneCampaign) -> None:
    (campaign,) = one_campaign.answers["campaigns"]
    found = json.loads(trimaran("results", "size=181B", "gbs=2048", "status=ok", "--json", ledger=ledger).stdout)
    fastest = min(trial["outcome"]["seconds"] for trial in found if trial["outcome"]["seconds"])
    assert campaign["seconds"] == fastest
    assert one_campaign.answers["report"] == str(one_campaign.page)
    assert one_campaign.page.stat().st_size > 1_000_000
