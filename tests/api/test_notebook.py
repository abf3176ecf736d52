"""examples/planning.ipynb is executed as Jupyter does it, and prints what is stored in it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "planning.ipynb"
EXECUTE = (sys.executable, "-c", "from nbclient.cli import main; main()", "--NotebookClient.record_timing=False")


def test_the_notebook_runs_and_shows_what_is_stored_in_it(tmp_path: Path) -> None:
    """If the cost model has changed: `make notebook` stores what it prints now."""
    folders = {name: str(tmp_path) for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")}
    executed = tmp_path / "executed.ipynb"
    subprocess.run(
        [*EXECUTE, str(NOTEBOOK), f"--output={executed}"],
        check=True,
        capture_output=True,
        env={**os.environ, **folders},
    )
    stored, now = (outputs(file) for file in (NOTEBOOK, executed))
    assert [texts(each) for each in now] == [texts(each) for each in stored]
    kinds = {kind for output in now for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds  # a table and a plot


def outputs(file: Path) -> list[dict[str, Any]]:
    cells = json.loads(file.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def texts(output: dict[str, Any]) -> str:
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
