"""`trimaran probe` as its own process: ranks are forked, which a process with other threads should not do."""

import subprocess
from collections.abc import Mapping

from tests.engine.commands import ENVIRONMENT, LIMIT_SECONDS, TRIMARAN


def probe(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TRIMARAN, "probe", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **(environment or {})},
    )


def finished(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = probe(*arguments, environment=environment)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err
