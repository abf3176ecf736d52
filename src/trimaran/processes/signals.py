"""Which signals stop a run, and what they do while no rank is there to be stopped."""

import os
import signal
from typing import Any

# Ctrl-C; what `kill` and schedulers send; SLURM's warning before a time limit; a terminal that was closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def caught_signals() -> list[signal.Signals]:
    """Those that stop this process: without SIGHUP where it is ignored, as under nohup, and in forked ranks, whose
    parent receives it."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


def exit_at_signals(code: int) -> None:
    """From here on a stop signal ends this process with a sentence. Not by an exception, which an import or a
    destructor may swallow: no rank is running, so there is nothing to clean up."""

    def leave(*_: Any) -> None:
        if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":  # for all
            os.write(2, b"trimaran: interrupted while no rank was running; nothing was lost.\n")
        os._exit(code)

    for number in caught_signals():
        signal.signal(number, leave)


def ignore_stop_signals() -> None:
    """In a process that is about to end anyway, and whose exit code is known."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
