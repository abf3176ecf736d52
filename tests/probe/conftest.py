"""Fixtures of other rooms' tests, and one quick probe of two ranks that several tests read."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import trimaran  # noqa: F401
from tests.probe.commands import finished


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The cluster file that `trimaran probe --ranks 2 --quick` wrote, and its JSON."""
    file = tmp_path_factory.mktemp("probe") / "here.yaml"
    code, out, err = finished("--ranks", "2", "--quick", "-o", str(file), "--json")
    assert (code, err) == (0, "")
    return file, json.loads(out)
