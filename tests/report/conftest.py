"""A real browser, and the reports it looks at, each written once by the command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=30_000)  # a browser on two busy cores

TRIMARAN = [sys.executable, "-m", "trimaran.cli.main"]


def trimaran(*arguments: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIMARAN_LEDGER": str(ledger)}
    return subprocess.run([*TRIMARAN, *arguments], env=environment, capture_output=True, text=True, timeout=120)


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


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Looked:
    """A page that is open, and what it said and asked for meanwhile."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked_for: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked_for.append(request.url))
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


@pytest.fixture(scope="session")
def one_campaign(tmp_path_factory: pytest.TempPathFactory, ledger: Path) -> Path:
    path = tmp_path_factory.mktemp("report") / "one.html"
    done = trimaran("report", "size=181B", "gbs=2048", "-o", str(path), ledger=ledger)
    assert (done.returncode, done.stderr) == (0, "")
    return path


@pytest.fixture
def looked(browser: Browser, gallery: Path) -> Iterator[Looked]:
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme="light")
    yield Looked(page, gallery)
    page.close()
