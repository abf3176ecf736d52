"""A ledger of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trimaran.ledger.store import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path) as opened:
        yield opened
