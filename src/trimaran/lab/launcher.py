"""Launcher: where trials run. What the harness asks of it, whichever it is."""

from typing import Literal, NamedTuple, Protocol

from trimaran.lab.trials import Attempt
from trimaran.spec.trial import Status


class Seen(NamedTuple):
    """What a launcher knows of an attempt that has left no result yet."""

    state: Literal["waiting", "running", "unknown", "gone"]  # unknown: whoever knows does not answer
    status: Status = "lost"  # for one that is gone
    reason: str = ""


class Launcher(Protocol):
    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool: ...

    def start(self, attempt: Attempt) -> None:
        """Raises OSError or Mistake where it cannot be started at all."""
        ...

    def look(self, attempt: Attempt) -> Seen: ...

    def why_cancelled(self, attempt: Attempt) -> Seen:
        """Of one that was told to end, and not by us."""
        ...

    def cancel(self, attempt: Attempt) -> None: ...

    def ended(self, attempt: Attempt) -> None:
        """It has left its result."""
        ...

    def wait(self, running: list[Attempt], seconds: float) -> None:
        """Until something may have ended, or so long."""
        ...
