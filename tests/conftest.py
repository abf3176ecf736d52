"""For all tests: no limit on how long an example may take, since nothing here is timed and machines are shared.

With CI=1 hypothesis always draws the same examples, so that a change is judged by itself; without, new ones each time.
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.processes import end_all

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    """A pipe that a failed test leaves open would be a ResourceWarning, and so an error, in some other test."""
    yield
    end_all()
