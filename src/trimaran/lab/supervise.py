"""The supervisor of one trial: `python -m trimaran.lab.supervise FOLDER`, its own process on the trainer's machine.

It runs the command of FOLDER/order.json, watches it, ends it, and writes FOLDER/result.json, also when the harness that
started it is long dead. Only the standard library, so that it starts in hundredths of a second on any node.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from trimaran.lab import files
from trimaran.lab.hang import HeartbeatWatch
from trimaran.lab.slurm_messages import is_step_refused, is_unreachable
from trimaran.lab.trial_processes import MARK, end_all, oom_kills, signal_step
from trimaran.processes.hang import collect_evidence
from trimaran.processes.kernel import end_with_parent

POLL_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0  # between two attempts to reach SLURM's controller
SECONDS_TO_STOP = 30.0  # of a trainer after SIGTERM
# Which variables are kept with a trial: those that change speed or results, and no secrets.
RECORDED_PREFIXES = (
    *("CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "HSA_"),
    *("OMP_", "MKL_", "KMP_", "SLURM_", "UCX_", "FI_"),
)


@dataclass
class TrialEnd:
    """Why the trial ends, before its exit code is known."""

    how: str = "exit"  # or stable, hang, timeout, cancelled
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


class Supervisor:
    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self.folder, self.order = folder, order
        self.cancelled, self.pid = False, os.getpid()
        self.unreachable_since: float | None = None  # SLURM's controller
        self.started = time.time()
        self.heartbeats = HeartbeatWatch(folder / files.HEARTBEATS, order["patience"])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._cancel)

    def _cancel(self, *_: Any) -> None:
        self.cancelled = True

    def run(self) -> None:
        killed_before = oom_kills()
        try:
            child = self._start()
        except OSError as error:
            self._finish(TrialEnd("exit", f"{error.strerror}: {error.filename}"), 127, killed_before)
            return
        end = self._watch(child)
        while end.how == "exit" and self._waits_for_controller(child.wait()):
            child = self._start()
            end = self._watch(child)
        code = child.wait() if end.how == "exit" else self._stop(child, gently=end.how == "stable")
        if self.cancelled and end.how == "exit" and code:  # SLURM signals us and the trainer at once
            end = TrialEnd("cancelled", "It was cancelled.")
        end_all(self.order["trial"])
        self._finish(end, code, killed_before)

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **self.order["environment"], MARK: self.order["trial"]}
        kept = {name: value for name, value in sorted(environment.items()) if name.startswith(RECORDED_PREFIXES)}
        files.write_json(self.folder / "environment.json", {**kept, **self.order["environment"]})
        with (self.folder / files.STDOUT).open("wb") as out, (self.folder / files.STDERR).open("wb") as err:
            return subprocess.Popen(
                self.order["command"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
                preexec_fn=self._limit,
            )

    def _waits_for_controller(self, code: int) -> bool:
        """Whether the trainer is to be started again, because its srun found no controller and nothing has run. As long
        as a trial may take to its first step, with pauses that double."""
        if code == 0 or self.order["slurm"] is None or (self.folder / files.STDOUT).stat().st_size:
            return False
        stderr = (self.folder / files.STDERR).read_text(errors="replace")
        if not (is_unreachable(stderr) or (self.unreachable_since and is_step_refused(stderr))):
            return False
        waits, now = self.folder / files.WAITS, time.monotonic()
        self.unreachable_since = self.unreachable_since or now
        waits.touch()
        resume_at = now + min(LONGEST_PAUSE_SECONDS, max(1.0, now - self.unreachable_since))
        while time.monotonic() < resume_at and not self.cancelled:
            time.sleep(POLL_SECONDS)
        waits.unlink()
        return not self.cancelled and now - self.unreachable_since < self.order["patience"]["start"]

    def _limit(self) -> None:
        """In the child, before exec: it dies with its supervisor, and its memory and cores are limited."""
        end_with_parent(self.pid)
        if self.order["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_DATA, (self.order["memory_bytes"],) * 2)
        if self.order["cpus"]:
            os.sched_setaffinity(0, self.order["cpus"])

    def _watch(self, child: "subprocess.Popen[bytes]") -> TrialEnd:
        files.write_json(
            self.folder / files.STARTED,
            {"supervisor": os.getpid(), "trainer": child.pid, "host": socket.gethostname(), "time": self.started},
        )
        deadline = time.monotonic() + self.order["limit_seconds"]
        while True:
            try:
                child.wait(POLL_SECONDS)
                return TrialEnd()
            except subprocess.TimeoutExpired:
                pass
            if self.cancelled:
                return TrialEnd("cancelled", "It was cancelled.")
            if time.monotonic() > deadline:
                limit = self.order["limit_seconds"]
                return TrialEnd("timeout", f"It did not finish within its limit of {limit:.0f} s.")
            records = files.read_lines(self.folder / files.METRICS)
            if is_stable(records, self.order["measure"]):
                return TrialEnd("stable")
            beats = self.heartbeats.when_stale([record["seconds"] for record in records if "seconds" in record])
            if beats:
                reason, evidence = collect_evidence(
                    self.folder / files.HEARTBEATS, beats, self.folder, lambda: signal_step(self.order["slurm"], "USR2")
                )
                return TrialEnd("hang", reason, evidence)
            written = sum((self.folder / name).stat().st_size for name in (files.STDOUT, files.STDERR))
            if self.heartbeats.is_silent(written):
                return TrialEnd("hang", f"It hangs: nothing was written for {self.order['patience']['start']:.0f} s.")

    def _stop(self, child: "subprocess.Popen[bytes]", gently: bool) -> int:
        """Gently: the trainer ends after its step and reports it. Otherwise everything is killed."""
        if gently:
            if not signal_step(self.order["slurm"], "TERM"):
                child.terminate()
            try:
                return child.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                pass
        child.kill()
        return child.wait()

    def _finish(self, end: TrialEnd, code: int, killed_before: int) -> None:
        result = {
            "trial": self.order["trial"],
            "how": end.how,
            "reason": end.reason,
            "evidence": end.evidence,
            "code": code,
            "started": self.started,
            "ended": time.time(),
            "kernel_oom_kills": oom_kills() - killed_before,
            "host": socket.gethostname(),
        }
        files.write_json(self.folder / files.RESULT, result)


def is_stable(records: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> bool:
    """The medians of the older and the newer half agree within the tolerance, after at least so many iterations
    without the warm-up."""
    seconds = [record["seconds"] for record in records if "seconds" in record and not record.get("warm_up")]
    if len(seconds) < rule["least"]:
        return False
    half = len(seconds) // 2
    older, newer = median(seconds[:half]), median(seconds[half:])
    return bool(abs(newer / older - 1) <= rule["tolerance"])


def main(folder: Path) -> int:
    order = files.read_json(folder / files.ORDER)
    if order is None or files.lock(folder / files.LOCK) is None:
        return 1  # nothing to do, or another supervisor does it
    before = files.read_result(folder)
    if before is not None and before["how"] == "cancelled" and os.environ.get("SLURM_RESTART_COUNT"):
        (folder / files.RESULT).unlink()  # SLURM ended it only to requeue it
    elif before is not None:
        return 1
    try:
        Supervisor(folder, order).run()
    except OSError as error:  # the disk is full, say; the harness reads stderr
        end_all(order["trial"])
        print(f"{error.strerror}: {error.filename or folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
