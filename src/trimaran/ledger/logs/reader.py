"""What readers of any trainer's log have in common: the runs of a file, how they end, what could not be used."""

from trimaran.ledger.logs.failure import FailureWatch, stronger
from trimaran.ledger.logs.run import Run
from trimaran.ledger.reading import Unread

_TEXT_LENGTH = 300  # of an unusable line that is shown


class LogReader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._runs: list[Run] = []
        self._watch = FailureWatch()
        self._unread: list[Unread] = []

    def _look_for_failure(self, at: int, text: str) -> None:
        failure = self._watch.look(text, at)
        if failure and self._runs and not self._runs[-1].finished:
            self._runs[-1].failure = stronger(self._runs[-1].failure, failure)

    def _refuse(self, at: int, text: str, why: str) -> None:
        self._unread.append(Unread(self._file, at, text.strip()[:_TEXT_LENGTH], why))

    def _told_runs(self, start: str, why: str) -> list[Run]:
        """Runs that did something; of the others the `start` is refused."""
        for run in self._runs:
            if not run.happened:
                self._refuse(run.line, start, why)
        return [run for run in self._runs if run.happened]
