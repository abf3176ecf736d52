"""A real browser, started once, and the reports it opens, each written once by the command."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE = 600  # seconds: only a hang takes so long, even with a load of 20
expect.set_options(timeout=PATIENCE * 1000)

TRIMARAN = [sys.executable, "-m", "trimaran.cli.main"]


def trimaran(*arguments: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIMARAN_LEDGER": str(ledger)}
    return subprocess.run([*TRIMARAN, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where it is not installed these tests are skipped, but not in CI, which installs it."""
    found = shutil.which("chromium")
    if found is None:
        reason = "chromium is not installed"
        if os.environ.get("TRIMARAN_REQUIRE_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class OpenPage:
    """A page, with everything it logged and requested since it was opened."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page = page
        page.set_default_timeout(PATIENCE * 1000)
        self.logged: list[str] = []
        self.requested: list[str] = []
        page.on("console", lambda message: self.logged.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.logged.append(str(error)))
        page.on("dialog", lambda dialog: (self.logged.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto(file.as_uri())


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published figures and their corrections."""
    path = tmp_path_factory.mktemp("ledger") / "trimaran.sqlite"
    assert trimaran("audit", "--published", "--fix", ledger=path).returncode == 0
    return path


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory, ledger: Path) -> Path:
    path = tmp_path_factory.mktemp("report") / "gallery.html"
    done = trimaran("report", "--published", "-o", str(path), ledger=ledger)
    assert (done.returncode, done.stderr) == (0, "")
    return path


class OneCampaign(NamedTuple):
    page: Path
    figures: Path
    answers: dict[str, Any]  # what --json printed


@pytest.fixture(scope="session")
def one_campaign(tmp_path_factory: pytest.TempPathFactory, ledger: Path, chromium: str) -> OneCampaign:
    folder = tmp_path_factory.mktemp("report")
    page, figures = folder / "one.html", folder / "figures"
    files = ("-o", str(page), "--figures", str(figures))
    done = trimaran("report", "size=181B", "gbs=2048", *files, "--json", ledger=ledger)
    assert (done.returncode, done.stderr) == (0, "")
    return OneCampaign(page, figures, json.loads(done.stdout))


@pytest.fixture
def opened(browser: Browser, gallery: Path) -> Iterator[OpenPage]:
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme="light")
    yield OpenPage(page, gallery)
    page.close()
