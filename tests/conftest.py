"""For all tests: no limit on how long an example may take, since nothing here is timed and machines are shared.

With CI=1 hypothesis always draws the same examples, so that a change is judged by itself; without, new ones each time.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.processes import end_all
from trimaran.processes.signals import STOP_SIGNALS

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")
# Started in the background or by nohup, pytest ignores these, and so would the processes that tests send them to.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _signals_are_as_before() -> Iterator[None]:
    """A command called in this process changes them to its end, and processes started later inherit what is ignored."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    """A pipe that a failed test leaves open would be a ResourceWarning, and so an error, in some other test."""
    yield
    end_all()
