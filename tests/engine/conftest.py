"""One pool of processes for all tests of the engine; none is started before a test asks for it."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import trimaran  # noqa: F401
from tests.engine.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    found = Pool()
    yield found
    found.stop()
