"""Trials as steps on the nodes of a SLURM allocation that we are in, several side by side where they need few nodes."""

import os
import re
import subprocess

from trimaran.lab import files
from trimaran.lab.local import Local
from trimaran.lab.orders import write_order
from trimaran.lab.slurm import step_command
from trimaran.lab.trials import Attempt
from trimaran.spec import Mistake, Sweep

_DEAD = re.compile(r"Node failure on (\S+?)[.,]?$", re.MULTILINE)


class Allocation(Local):
    """Supervisors run here; their trainers are srun's steps. Free nodes are counted here, because SLURM lets steps
    overlap."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__(sweep)
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            raise Mistake(
                "place.kind is allocation, but this is not inside one (SLURM_JOB_ID is not set): start the sweep in"
                " `salloc` or `sbatch`, or set place.kind=slurm for a job for each trial."
            )
        self.job_number: str = job
        self.nodes = nodes_of(os.environ.get("SLURM_JOB_NODELIST", ""))
        self.taken: dict[str, list[str]] = {}

    def needed(self, attempt: Attempt) -> int:
        return -(-attempt.job.layout.devices // attempt.job.cluster.devices_per_node)

    def has_room(self, attempt: Attempt, running: list[Attempt]) -> bool:
        for other in running:  # one that an earlier harness started holds its nodes too
            order = files.read_json(other.folder / files.ORDER)
            self.taken.setdefault(other.id, list((order or {}).get("nodes", [])))
        return super().has_room(attempt, running) and len(self._free()) >= self.needed(attempt)

    def _free(self) -> list[str]:
        taken = {node for nodes in self.taken.values() for node in nodes}
        return [node for node in self.nodes if node not in taken]

    def start(self, attempt: Attempt) -> None:
        count = self.needed(attempt)
        if count > len(self.nodes):
            raise Mistake(f"The trial needs {count} nodes, but the allocation has {len(self.nodes)} that work.")
        nodes = self._free()[:count]
        self.taken[attempt.id] = nodes
        where = [f"--jobid={self.job_number}", f"--nodes={count}", f"--nodelist={','.join(nodes)}", "--overlap"]
        command = step_command(self.sweep, attempt)
        slurm = {"job": self.job_number, "name": attempt.id}
        told = {"TRIMARAN_NODES": ",".join(nodes)}  # for another trainer's command, which has an srun of its own
        wrapped = [*command, *where] if command else None
        write_order(self.sweep, attempt, wrapped=wrapped, environment=told, slurm=slurm, nodes=nodes)
        self.supervise(attempt)

    def ended(self, attempt: Attempt) -> None:
        super().ended(attempt)
        self.taken.pop(attempt.id, None)
        try:
            said = (attempt.folder / files.STDERR).read_text(errors="replace")
        except OSError:
            return
        dead = set(_DEAD.findall(said))
        self.nodes = [node for node in self.nodes if node not in dead]


def nodes_of(listed: str) -> list[str]:
    """Names of `node[0-3,7]`, which scontrol spells out."""
    shown = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True)
    return shown.stdout.split()
