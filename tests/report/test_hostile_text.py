"""Names, notes and sources of trials are shown on the page as they were written, and nothing in them runs."""

import shlex
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.report.conftest import OpenPage, trimaran
from trimaran.ledger.store import Ledger
from trimaran.spec import Outcome, Setup, Source, Trial
from trimaran.spec.files import load_job

RUN = "window.pwned = document.title = 'pwned'"
EVIL = (
    f"</script><script>{RUN}</script>",
    f'<img src=x onerror="{RUN}"> {{{{ 7 * 7 }}}}',
    f'<a href="javascript:{RUN}">javascript</a>',
    "<a href='https://example.org/'>link</a>",
    "<!--<script>",
    "<b>bold</b> & %{x} &lt;",
    f'"\' onmouseover="{RUN}" x=\'\u2028',
)


@pytest.fixture
def hostile_page(tmp_path: Path) -> Path:
    """A report of runs, whose labels are in the figures, in a ledger whose own name is hostile too."""
    evil = " ".join(EVIL)
    job = load_job("gpt-1b3-h200")
    trials = []
    for i, label in enumerate(EVIL):
        poisoned = job.replace(
            name=evil,
            model=job.model.replace(name=evil, source=evil).model_dump(),
            cluster=job.cluster.replace(name=evil).model_dump(),
            layout=job.layout.replace(micro_batch=2**i // 2 or 1).model_dump() if i < 4 else job.layout.model_dump(),
            environment={evil: evil},
        )
        trial = Trial(
            id=f"{i}{evil}",
            setup=Setup.of_job(poisoned),
            job=poisoned,
            outcome=Outcome(status="ok", seconds=1.0 + i, reason=evil),
            source=Source(kind="run", file=evil, table=evil, label=label),
            host=evil,
            code_version=evil,
        )
        trials.append(trial)
    failed = trials[0].replace(
        id=evil, outcome={"status": "fail", "reason": evil}, source={"kind": "run", "table": evil, "label": evil}
    )
    ledger = tmp_path / "<b>ledger.sqlite"
    with Ledger.open(ledger) as store:
        store.add([*trials, failed])
    done = trimaran("report", "-o", str(tmp_path / "report.html"), ledger=ledger)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path / "report.html"


def test_hostile_labels_and_notes_run_no_script_and_are_shown_as_written(browser: Browser, hostile_page: Path) -> None:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    opened = OpenPage(page, hostile_page)
    expect(page).to_have_title("Measured trials")
    plots = page.locator(".plot")
    assert plots.count() >= 4
    for plot in plots.all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg.main-svg").first).to_be_visible()
    assert opened.logged == []
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, .plot a, [onmouseover], [onerror]").count() == 0
    drawn = page.locator("#figure-1-seconds .ytick text").evaluate_all("all => all.map(each => each.textContent)")
    assert {text.strip() for text in drawn} == {" ".join(label.split("\u2028")).strip() for label in EVIL}
    cells = page.locator("table.trials tbody td:last-child").evaluate_all("all => all.map(each => each.textContent)")
    assert all(any(label in cell for cell in cells) for label in EVIL)
    assert {url.partition(":")[0] for url in opened.requested} <= {"file", "data", "blob"}
    page.close()


def test_the_commands_on_a_page_can_be_pasted_whatever_was_asked_for(tmp_path: Path) -> None:
    asked = "device='; touch canary; '"
    setup = Setup(device=asked.partition("=")[2], gbs=8, tp=1, pp=1, dp=1, mbs=1, layers=2, hidden=256)
    trial = Trial(id="one", setup=setup, outcome=Outcome(status="ok", seconds=1.0), source=Source(kind="csv"))
    ledger = tmp_path / "ledger.sqlite"
    with Ledger.open(ledger) as store:
        store.add([trial])
    page = tmp_path / "report.html"
    done = trimaran("report", asked, "-o", str(page), ledger=ledger)
    assert (done.returncode, done.stderr) == (0, "")
    shown = unescape(page.read_text())
    command = shown.partition('<pre class="commands">$ ')[2].partition("\n")[0]
    assert shlex.split(command) == ["trimaran", "results", asked]
