"""Trials through SLURM, each a batch job of its own. Its supervisor runs on the job's first node.

The truth about a trial is its result file; only where there is none SLURM is asked, and a controller that does not
answer is not taken for a job that is gone.
"""

import shlex
import subprocess
import sys
import time
from typing import NamedTuple

from trimaran.lab import files
from trimaran.lab.launcher import Seen
from trimaran.lab.orders import write_order
from trimaran.lab.trials import Attempt
from trimaran.spec import Job, Mistake, Sweep
from trimaran.spec.trial import Status

ASK_EVERY_SECONDS = 1.0
GRACE_SECONDS = 15.0  # for a result to be seen on a shared file system after its job has ended
ENDED: dict[str, tuple[Status, str]] = {
    "NODE_FAIL": ("lost", "A node of the job failed."),
    "BOOT_FAIL": ("lost", "A node of the job did not start."),
    "PREEMPTED": ("lost", "The job was preempted."),
    "TIMEOUT": ("timeout", "SLURM ended the job at its time limit."),
    "DEADLINE": ("timeout", "SLURM ended the job at its deadline."),
    "OUT_OF_MEMORY": ("oom", "SLURM ended the job because its memory ran out."),
    "CANCELLED": ("cancelled", "The job was cancelled in SLURM."),
    "FAILED": ("fail", "The job failed before its trainer could say anything"),
    "COMPLETED": ("lost", "The job is over, but it left no result."),
}
NEVER = {
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "BadConstraints": "no node can satisfy its constraints",
    "JobHeldAdmin": "an administrator holds it",
    "AssocMaxJobsLimit": "the account's limit of jobs does not allow it",
    "QOSMaxNodePerJobLimit": "its quality of service allows fewer nodes",
    "AccountNotAllowed": "its account may not use this partition",
    "DependencyNeverSatisfied": "it depends on a job that will never end well",
}


class Queued(NamedTuple):
    number: str
    state: str
    reason: str


class Slurm:
    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.queue: dict[str, Queued] = {}  # by the job's name, which is the trial's
        self.asked_at, self.answers = float("-inf"), True
        self.gone_since: dict[str, float] = {}

    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool:
        return len(running) < self.sweep.place.parallel

    def start(self, attempt: Attempt) -> None:
        write_order(
            self.sweep, attempt, wrapped=step_command(self.sweep, attempt), slurm={"job": None, "name": attempt.id}
        )
        script = batch_script(self.sweep, attempt)
        (attempt.folder / "job.sh").write_text(script)
        options = ["--parsable", "--no-requeue", f"--job-name={attempt.id}", f"--comment={attempt.id}"]
        options += [f"--output={attempt.folder / 'slurm.log'}", *resources(self.sweep, attempt.job)]
        sent = subprocess.run(
            ["sbatch", *options, *self.sweep.place.options], input=script, capture_output=True, text=True, check=False
        )
        if sent.returncode:
            raise Mistake(f"SLURM refused the job: {sent.stderr.strip().splitlines()[-1]}.")
        files.write_json(attempt.folder / files.SUBMITTED, {"job": sent.stdout.strip().split(";")[0]})
        self.asked_at = float("-inf")

    def look(self, attempt: Attempt) -> Seen:
        self._ask()
        if not self.answers:
            return Seen("unknown", reason="SLURM's controller does not answer.")
        job = self.queue.get(attempt.id)
        if job is not None and job.state in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"):
            if job.reason in NEVER:
                self.cancel(attempt)
                return Seen("gone", "fail", f"The job can never start: {NEVER[job.reason]} ({job.reason}).")
            return Seen("waiting", reason=job.reason)
        if job is not None and job.state not in ENDED:
            self.gone_since.pop(attempt.id, None)
            return Seen("running")
        since = self.gone_since.setdefault(attempt.id, time.monotonic())
        decided = job is not None and job.state in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
        if time.monotonic() - since < (2.0 if decided else GRACE_SECONDS):
            return Seen("running")
        return ended(job)

    def why_cancelled(self, attempt: Attempt) -> Seen:
        """SLURM ends a job at its limit, when a node fails, or to put it into the queue again."""
        self._ask()
        job = self.queue.get(attempt.id)
        return ended(job) if self.answers and (job is None or job.state in ENDED) else Seen("running")

    def cancel(self, attempt: Attempt) -> None:
        submitted = files.read_json(attempt.folder / files.SUBMITTED)
        job = submitted["job"] if submitted else getattr(self.queue.get(attempt.id), "number", None)
        if job:
            subprocess.run(["scancel", job], capture_output=True, check=False)

    def ended(self, attempt: Attempt) -> None:
        self.gone_since.pop(attempt.id, None)

    def wait(self, running: list[Attempt], seconds: float) -> None:
        time.sleep(min(seconds, ASK_EVERY_SECONDS / 4))

    def _ask(self) -> None:
        """All jobs in one question; known ids only would drop what the controller forgot."""
        if time.monotonic() - self.asked_at < ASK_EVERY_SECONDS:
            return
        asked = subprocess.run(
            ["squeue", "-h", "--me", "-t", "all", "-o", "%j|%A|%T|%r"], capture_output=True, text=True, check=False
        )
        self.asked_at, self.answers = time.monotonic(), asked.returncode == 0
        if self.answers:
            rows = [line.strip().rsplit("|", 3) for line in asked.stdout.splitlines()]
            self.queue = {name: Queued(number, state, reason) for name, number, state, reason in rows}


def ended(job: Queued | None) -> Seen:
    """What SLURM says of a job that is over."""
    if job is None:
        return Seen("gone", "lost", "SLURM does not know the job any more, and it left no result.")
    status, reason = ENDED[job.state]
    said = f" ({job.reason})." if job.state == "FAILED" else ""
    return Seen("gone", status, f"{reason}{said}")


def resources(sweep: Sweep, job: Job) -> list[str]:
    """Nodes and tasks of a Job, one task a device."""
    devices, per_node = job.layout.devices, job.cluster.devices_per_node
    nodes = -(-devices // per_node)
    minutes = round(sweep.measuring.minutes + 2 * sweep.measuring.silence_minutes)
    found = [f"--nodes={nodes}", f"--ntasks-per-node={min(devices, per_node)}", f"--time={minutes}"]
    if job.cluster.device.is_gpu:
        found.append(f"--gres=gpu:{min(devices, per_node)}")
    return found


def step_command(sweep: Sweep, attempt: Attempt) -> list[str]:
    """One task a device; another trainer's command has its own srun or torchrun."""
    if sweep.command is not None:
        return []
    layout, per_node = attempt.job.layout, attempt.job.cluster.devices_per_node
    tasks = [f"--ntasks={layout.devices}", f"--ntasks-per-node={min(layout.devices, per_node)}"]
    return ["srun", "--kill-on-bad-exit=1", f"--job-name={attempt.id}", *tasks]


def batch_script(sweep: Sweep, attempt: Attempt) -> str:
    words = [sys.executable, "-m", "trimaran.lab.supervise", str(attempt.folder)]
    return f"#!/bin/bash\n{sweep.place.prepare.rstrip()}\nexec {shlex.join(words)}\n"
