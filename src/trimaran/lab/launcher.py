"""Launcher: where trials run, as the harness sees it (local.py, slurm.py)."""

from typing import Literal, NamedTuple, Protocol

from trimaran.lab.sweep_folder import Attempt
from trimaran.spec.trial import Status


class LauncherStatus(NamedTuple):
    """What a launcher knows of an attempt without a result."""

    state: Literal["waiting", "running", "unknown", "gone"]  # unknown: SLURM does not answer
    status: Status = "lost"  # of one that is gone
    reason: str = ""


class Launcher(Protocol):
    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool: ...

    def start(self, attempt: Attempt) -> None:
        """Raises OSError or Mistake where it cannot be started at all."""
        ...

    def look(self, attempt: Attempt) -> LauncherStatus: ...

    def why_cancelled(self, attempt: Attempt) -> LauncherStatus:
        """Of one that was ended, and not by us."""
        ...

    def cancel(self, attempt: Attempt) -> None: ...

    def ended(self, attempt: Attempt) -> None:
        """It has left its result."""
        ...

    def wait(self, running: list[Attempt], seconds: float) -> None:
        """Until something may have ended, or for so long."""
        ...
