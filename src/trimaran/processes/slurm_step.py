"""A run as a step of the SLURM allocation that this process is in. srun starts a task per device on nodes that work;
its lines say how the tasks ended, because its exit code is that of the tasks it has killed."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimaran.processes.exit_codes import BAD_JOB, DONE, INTERRUPTED, NOT_FINITE, OUT_OF_MEMORY, RANK_FAILED
from trimaran.processes.rendezvous import host_names
from trimaran.processes.signals import STOP_SIGNALS

_TASK_ENDED = re.compile(r"^srun: error: (\S+): tasks? \S+ (?:Exited with exit code (\d+)|(.+))$")
_NODE_LOST = re.compile(r"Node failure on (\S+?)[.,]?$|failed on node ([^\s:]+)")
_WORKS = re.compile(r"(allocated|mixed|idle|completing)[+-]?")  # not down, drained, failing, or silent: allocated*
_CAUSES = (BAD_JOB, OUT_OF_MEMORY, NOT_FINITE)  # which explain whatever else happened


def in_allocation(environment: Mapping[str, str]) -> bool:
    return "SLURM_JOB_ID" in environment


@dataclass
class Allocation:
    """The nodes that SLURM gave to this job, and what was learned about them."""

    job: str
    listed: str  # as SLURM lists nodes
    lost: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)  # by the node of the first task that failed

    def working_nodes(self) -> list[str]:
        """Those without failed tasks first. A controller that does not answer does not mean that nodes are gone."""
        left = _told("squeue", "--noheader", f"--jobs={self.job}", "--format=%N").strip()  # --no-kill drops lost ones
        nodes = host_names(left or self.listed)
        told = _told("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T")
        states = dict(line.split() for line in told.splitlines())
        works = [node for node in nodes if node not in self.lost and _WORKS.fullmatch(states.get(node, "allocated"))]
        return sorted(works, key=lambda node: self.failures[node])

    def requeue(self) -> bool:
        """Whether SLURM will run this batch job again, on nodes that work. It ends this process soon."""
        return subprocess.run(["scontrol", "requeue", self.job], capture_output=True, check=False).returncode == 0


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


class StopRequests:
    """The first signal asks the ranks to stop after their step, the second ends them at once."""

    def __init__(self) -> None:
        self.count = 0
        self.srun: subprocess.Popen[str] | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, *_: Any) -> None:
        self.count += 1
        self.forward()

    def forward(self) -> None:
        if self.srun is not None and self.count:  # srun passes on SIGUSR1, and ends the tasks at SIGTERM
            self.srun.send_signal(signal.SIGUSR1 if self.count == 1 else signal.SIGTERM)


def run_step(
    command: Sequence[str], nodes: Sequence[str], tasks: int, allocation: Allocation, stops: StopRequests
) -> int:
    """The exit code of the run. What is learned about nodes goes to the allocation."""
    options = [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", "--overlap", "--kill-on-bad-exit=1"]
    options += [f"--ntasks={tasks}", f"--ntasks-per-node={tasks // len(nodes)}"]
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")  # which srun does not take from sbatch
    options += [f"--cpus-per-task={cpus}"] if cpus else []
    lines = []
    # A session of its own: a terminal's Ctrl-C would reach srun too, which takes it as a question.
    with subprocess.Popen(
        ["srun", *options, *command],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as srun:
        stops.srun = srun
        stops.forward()  # what came before there was a step
        assert srun.stderr is not None
        for line in srun.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if line.startswith("srun: "):
                lines.append(line.rstrip())
    stops.srun = None
    end = read_step_end(lines)
    allocation.lost |= end.lost
    allocation.failures.update([end.failed_on] if end.failed_on else [])
    return DONE if srun.returncode == 0 else INTERRUPTED if stops.count else end.code


@dataclass(frozen=True)
class StepEnd:
    code: int
    lost: frozenset[str]  # nodes
    failed_on: str | None  # a node that works, of the first task that failed


def read_step_end(lines: Sequence[str]) -> StepEnd:
    """How a step failed by srun's lines, which are in order: the first task to end is not a consequence of another,
    unless one of those after it had a cause of its own."""
    lost = frozenset(found[1] or found[2] for line in lines if (found := _NODE_LOST.search(line)))
    ended = [found.groups() for line in lines if (found := _TASK_ENDED.match(line))]
    codes = [int(code) if code else OUT_OF_MEMORY if words == "Out Of Memory" else 0 for _, code, words in ended]
    code = next((code for code in codes if code in _CAUSES), codes[0] if codes else 0)
    known = code in (*_CAUSES, INTERRUPTED)
    return StepEnd(code if known else RANK_FAILED, lost, None if lost or not ended else ended[0][0])
