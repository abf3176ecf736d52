"""A sign of life: one small file per rank, replaced whenever the rank gets on, for a watchdog outside the run; and the
rank's stack beside it, when the watchdog asks for it with SIGUSR2."""

import faulthandler
import json
import os
import signal
import socket
import time
from pathlib import Path


class Heartbeat:
    def __init__(self, folder: Path | None, rank: int) -> None:
        self.file = folder / f"rank-{rank:05d}.json" if folder else None
        self.rank = rank
        self.host = socket.gethostname()
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.stack = (folder / f"rank-{rank:05d}.stack").open("w")
            faulthandler.register(signal.SIGUSR2, self.stack)

    def beat(self, doing: str, iteration: int = 0) -> None:
        if self.file is None:
            return
        state = {"rank": self.rank, "pid": os.getpid(), "host": self.host, "doing": doing, "iteration": iteration}
        state["time"] = time.time()
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.replace(self.file)  # a reader sees the old or the new, never half of one
