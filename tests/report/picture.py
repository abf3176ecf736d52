"""The picture of a report in the README: `python -m tests.report.picture docs/report.png`."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.report.conftest import trimaran


def main(picture: str) -> None:
    path = Path(picture).resolve()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        os.chdir(scratch)
        page_file, ledger = Path("report.html"), Path("trimaran.sqlite")
        trimaran("audit", "--published", "--fix", ledger=ledger)
        trimaran("report", "size=181B", "gbs=2048", "-o", str(page_file), ledger=ledger)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 2640}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        page.wait_for_function("document.querySelectorAll('.plot svg.main-svg').length > 3")
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
