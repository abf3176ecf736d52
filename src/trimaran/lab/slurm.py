"""Trials through SLURM: each as its own batch job, or as steps on the nodes of an allocation.

The result file of a trial is authoritative. SLURM is asked only where there is none, and a controller that does not
answer does not mean that the job is gone.
"""

import os
import shlex
import subprocess
import time
from typing import NamedTuple

from trimaran.lab import files
from trimaran.lab.local import LauncherStatus, LocalLauncher, supervisor_command
from trimaran.lab.orders import write_order
from trimaran.lab.slurm_messages import UNREACHABLE, failed_nodes, is_unreachable
from trimaran.lab.sweep_folder import Attempt
from trimaran.processes.rendezvous import host_names
from trimaran.spec import Job, Mistake, Sweep
from trimaran.spec.trial import Status

QUERY_EVERY_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0  # between queries while the controller does not answer
CLIENT_SECONDS = 60.0  # for a reply: sbatch itself tries again for minutes when the controller is busy
MINUTES_TO_SUBMIT = 30.0  # a restart of the controller takes seconds, an upgrade some minutes
GRACE_SECONDS = 15.0  # until a result is visible on a shared file system after its job has ended
ENDED: dict[str, tuple[Status, str]] = {
    "NODE_FAIL": ("lost", "A node of the job failed."),
    "BOOT_FAIL": ("lost", "A node of the job did not start."),
    "PREEMPTED": ("lost", "The job was preempted."),
    "TIMEOUT": ("timeout", "SLURM ended the job at its time limit."),
    "DEADLINE": ("timeout", "SLURM ended the job at its deadline."),
    "OUT_OF_MEMORY": ("oom", "SLURM ended the job because its memory ran out."),
    "CANCELLED": ("cancelled", "The job was cancelled in SLURM."),
    "FAILED": ("fail", "The job failed before its trainer started"),
    "COMPLETED": ("lost", "The job ended without leaving a result."),
}
NEVER_STARTS = {
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "BadConstraints": "no node can satisfy its constraints",
    "JobHeldAdmin": "an administrator holds it",
    "AssocMaxJobsLimit": "the account has reached its limit of jobs",
    "QOSMaxNodePerJobLimit": "its quality of service allows fewer nodes",
    "AccountNotAllowed": "its account may not use this partition",
    "DependencyNeverSatisfied": "it depends on a job that did not succeed",
}


class QueuedJob(NamedTuple):
    number: str
    state: str
    reason: str


class SlurmJobLauncher:
    """A batch job per trial; its supervisor runs on the job's first node."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.queue: dict[str, QueuedJob] = {}  # by the job's name, which is the trial's
        self.query_at, self.pause, self.answers = float("-inf"), QUERY_EVERY_SECONDS, True
        self.unsent: dict[str, float] = {}  # whose sbatch got no answer, since when
        self.gone_since: dict[str, float] = {}

    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool:
        return len(running) < self.sweep.place.parallel

    def start(self, attempt: Attempt) -> None:
        wrapper = step_command(self.sweep, attempt)
        write_order(self.sweep, attempt, wrapper=wrapper, slurm={"job": None, "name": attempt.id})
        script = f"#!/bin/bash\n{self.sweep.place.prepare.rstrip()}\nexec {shlex.join(supervisor_command(attempt))}\n"
        (attempt.folder / "job.sh").write_text(script)
        self._submit(attempt)

    def _submit(self, attempt: Attempt) -> None:
        options = ["--parsable", "--no-requeue", f"--job-name={attempt.id}", f"--comment={attempt.id}"]
        options += [f"--output={attempt.folder / 'slurm.log'}", *resources(self.sweep, attempt.job)]
        sent = ask("sbatch", *options, *self.sweep.place.options, str(attempt.folder / "job.sh"))
        if sent.returncode == 0:
            self._submitted(attempt, sent.stdout.strip().split(";")[0])
        elif is_unreachable(sent.stderr):
            self.unsent.setdefault(attempt.id, time.monotonic())
            self._no_answer()
        else:
            lines = sent.stderr.strip().splitlines() or [f"sbatch ended with exit code {sent.returncode}"]
            raise Mistake(f"SLURM refused the job: {lines[-1]}.")

    def _submitted(self, attempt: Attempt, number: str) -> None:
        files.write_json(attempt.folder / files.SUBMITTED, {"job": number})
        self.unsent.pop(attempt.id, None)
        self.query_at = float("-inf")

    def _submit_again(self, attempt: Attempt) -> LauncherStatus:
        """An sbatch that got no answer may have been accepted all the same: then the job has the trial's name."""
        if (accepted := self.queue.get(attempt.id)) is not None and self.answers:
            self._submitted(attempt, accepted.number)
        elif self.answers:
            try:
                self._submit(attempt)
            except Mistake as refused:
                self.withdraw(attempt)
                return LauncherStatus("fail", f"It could not be started: {refused}")
        since = self.unsent.get(attempt.id)
        if since is None:
            return LauncherStatus()
        if time.monotonic() - since > 60 * MINUTES_TO_SUBMIT and self.withdraw(attempt):
            return LauncherStatus(
                "lost", f"{UNREACHABLE}: the job could not be submitted in {MINUTES_TO_SUBMIT:g} min."
            )
        return LauncherStatus(reason=UNREACHABLE)

    def withdraw(self, attempt: Attempt) -> bool:
        """Without its order a job that was accepted all the same ends at once."""
        if self.unsent.pop(attempt.id, None) is None or (attempt.folder / files.STARTED).exists():
            return False
        (attempt.folder / files.ORDER).unlink(missing_ok=True)
        return True

    def look(self, attempt: Attempt) -> LauncherStatus:
        self._query()
        if attempt.id in self.unsent:
            return self._submit_again(attempt)
        if not self.answers:
            return LauncherStatus(reason=UNREACHABLE)
        job = self.queue.get(attempt.id)
        if job is not None and job.state in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"):
            if job.reason in NEVER_STARTS:
                self.cancel(attempt)
                why = f"{NEVER_STARTS[job.reason]} ({job.reason})"
                return LauncherStatus("fail", f"The job can never start: {why}.")
            return LauncherStatus(reason=job.reason)
        if job is not None and job.state not in ENDED:
            self.gone_since.pop(attempt.id, None)
            return LauncherStatus()
        since = self.gone_since.setdefault(attempt.id, time.monotonic())
        decided = job is not None and job.state in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
        if time.monotonic() - since < (2.0 if decided else GRACE_SECONDS):
            return LauncherStatus()
        return status_of_ended(job)

    def why_cancelled(self, attempt: Attempt) -> LauncherStatus:
        """SLURM ends a job at its time limit, when a node fails, or to requeue it."""
        self._query()
        job = self.queue.get(attempt.id)
        has_ended = job is None or job.state in ENDED
        return status_of_ended(job) if self.answers and has_ended else LauncherStatus()

    def cancel(self, attempt: Attempt) -> bool:
        """By its name, which is unique: a number in a file may be anybody's."""
        self._query()
        job = self.queue.get(attempt.id)
        if self.answers and job is not None:
            return not is_unreachable(ask("scancel", job.number).stderr)
        return self.answers

    def ended(self, attempt: Attempt) -> None:
        self.gone_since.pop(attempt.id, None)

    def wait(self, running: list[Attempt], seconds: float) -> None:
        time.sleep(min(seconds, QUERY_EVERY_SECONDS / 4))

    def _query(self) -> None:
        """All jobs in one query; a query for ids fails when the controller has forgotten one."""
        if time.monotonic() < self.query_at:
            return
        listed = ask("squeue", "-h", "--me", "-t", "all", "-o", "%j|%A|%T|%r")
        if listed.returncode:
            self._no_answer()
            return
        self.answers, self.pause = True, QUERY_EVERY_SECONDS
        self.query_at, self.queue = time.monotonic() + self.pause, {}
        for line in listed.stdout.splitlines():
            name, *told = line.strip().rsplit("|", 3)
            if len(told) < 3:  # a part of another job's name, which may have line breaks
                continue
            number, state, reason = told
            if name not in self.queue or state not in ENDED:  # of two with one name, that which has not ended
                self.queue[name] = QueuedJob(number, state, reason)

    def _no_answer(self) -> None:
        self.answers, self.pause = False, min(2 * self.pause, LONGEST_PAUSE_SECONDS)
        self.query_at = time.monotonic() + self.pause


def ask(*words: str) -> "subprocess.CompletedProcess[str]":
    """A SLURM client, in a session of its own, because Ctrl-C would end it between request and reply."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=CLIENT_SECONDS, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: Socket timed out: no reply.")


def status_of_ended(job: QueuedJob | None) -> LauncherStatus:
    """What SLURM reports of a job that has ended."""
    if job is None:
        return LauncherStatus("lost", "SLURM no longer knows the job, and it left no result.")
    status, reason = ENDED[job.state]
    said = f" ({job.reason})." if job.state == "FAILED" else ""
    return LauncherStatus(status, f"{reason}{said}")


def resources(sweep: Sweep, job: Job) -> list[str]:
    """Nodes and tasks of a Job, one task per device."""
    devices, per_node = job.layout.devices, job.cluster.devices_per_node
    minutes = round(sweep.measuring.minutes + 2 * sweep.measuring.silence_minutes)
    options = [f"--nodes={nodes_needed(job)}", f"--ntasks-per-node={min(devices, per_node)}", f"--time={minutes}"]
    if job.cluster.device.is_gpu:
        options.append(f"--gres=gpu:{min(devices, per_node)}")
    return options


def nodes_needed(job: Job) -> int:
    return -(-job.layout.devices // job.cluster.devices_per_node)


def step_command(sweep: Sweep, attempt: Attempt) -> list[str]:
    """One task per device; another trainer's command has its own srun or torchrun."""
    if sweep.command is not None:
        return []
    layout, per_node = attempt.job.layout, attempt.job.cluster.devices_per_node
    tasks = [f"--ntasks={layout.devices}", f"--ntasks-per-node={min(layout.devices, per_node)}"]
    return ["srun", "--kill-on-bad-exit=1", f"--job-name={attempt.id}", *tasks]


class SlurmStepLauncher(LocalLauncher):
    """Steps on the nodes of the allocation that we are in. Supervisors run here; their trainers are srun's steps. Free
    nodes are counted here, because SLURM lets steps overlap."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__(sweep)
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            raise Mistake(
                "place.kind is allocation, but this is not inside one (SLURM_JOB_ID is not set): start the sweep in"
                " `salloc` or `sbatch`, or set place.kind=slurm for a job for each trial."
            )
        self.job_number: str = job
        self.nodes = host_names(os.environ.get("SLURM_JOB_NODELIST", ""))
        self.taken: dict[str, list[str]] = {}

    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool:
        for other in running:  # also those that an earlier harness started
            order = files.read_json(other.folder / files.ORDER)
            nodes = (order or {}).get("nodes")
            self.taken.setdefault(other.id, nodes if isinstance(nodes, list) else [])
        return super().has_room(attempt, running) and len(self._free()) >= nodes_needed(attempt.job)

    def _free(self) -> list[str]:
        taken = {node for nodes in self.taken.values() for node in nodes}
        return [node for node in self.nodes if node not in taken]

    def start(self, attempt: Attempt) -> None:
        count = nodes_needed(attempt.job)
        if count > len(self.nodes):
            raise Mistake(f"The trial needs {count} nodes, but the allocation has {len(self.nodes)} that work.")
        nodes = self._free()[:count]
        self.taken[attempt.id] = nodes
        where = [f"--jobid={self.job_number}", f"--nodes={count}", f"--nodelist={','.join(nodes)}", "--overlap"]
        command = step_command(self.sweep, attempt)
        slurm = {"job": self.job_number, "name": attempt.id}
        variables = {"TRIMARAN_NODES": ",".join(nodes)}  # for another trainer's command, which has its own srun
        wrapper = [*command, *where] if command else []
        write_order(self.sweep, attempt, wrapper=wrapper, environment=variables, slurm=slurm, nodes=nodes)
        self.supervise(attempt)

    def ended(self, attempt: Attempt) -> None:
        super().ended(attempt)
        self.taken.pop(attempt.id, None)
        try:
            stderr = (attempt.folder / files.STDERR).read_text(errors="replace")
        except OSError:
            return
        failed = failed_nodes(stderr)
        self.nodes = [node for node in self.nodes if node not in failed]
