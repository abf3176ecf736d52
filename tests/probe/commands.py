"""`trimaran probe` as its own process: ranks are forked, which a process with other threads should not do."""

from collections.abc import Mapping

from tests.engine.commands import ENVIRONMENT, TRIMARAN
from tests.processes import Process, finish, start


def probe(*arguments: str, environment: Mapping[str, str] | None = None) -> Process:
    return start([*TRIMARAN, "probe", *arguments], {**ENVIRONMENT, **(environment or {})})


def finished(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = probe(*arguments, environment=environment)
    out, err = finish(process)
    return process.returncode, out, err
