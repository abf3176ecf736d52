"""Fixtures about the machine that a Job may be on."""

from collections.abc import Iterator

import pytest

from tests.spec.machines import two_cores
from trimaran.spec import presets


@pytest.fixture
def on_two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`here` is a machine of two cores and 16 GiB, and is forgotten afterwards."""
    monkeypatch.setattr(presets, "detect_here", two_cores)
    presets.preset.cache_clear()
    yield
    presets.preset.cache_clear()
