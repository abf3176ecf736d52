"""One pool of processes for all tests of the engine; none is started before a test asks for it.

Everything runs on one thread: the models are tiny, and on a busy machine the threads of an operation wait for each
other."""

from collections.abc import Iterator

import pytest
import torch

from tests.cli.conftest import trimaran  # noqa: F401
from tests.engine.pool import Pool

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    found = Pool()
    yield found
    found.stop()
