"""slurm.conf and cgroup.conf of a cluster whose nodes are all on this machine."""

import os
import pwd
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


@cache
def has_host_names() -> bool:
    """Whether a node may have a host name and a hosts file of its own: root may, but not in every container."""
    return subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Node:
    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Settings:
    """`folder` becomes part of a socket's name, which may have 108 characters."""

    folder: Path
    port: int
    nodes: tuple[Node, ...]
    cpus: int
    memory_mb: int

    @property
    def with_cgroups(self) -> bool:
        """Then SLURM finds every process of a job, and ends those that take more memory than was asked for."""
        return all(os.access(CGROUPS / controller / "cgroup.procs", os.W_OK) for controller in ("freezer", "memory"))

    def write(self) -> None:
        (self.folder / "slurm.conf").write_text(self._slurm())
        (self.folder / "hosts").write_text(self._hosts())
        if self.with_cgroups:
            (self.folder / "cgroup.conf").write_text(
                "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n"
            )

    def _slurm(self) -> str:
        host, folder, user = socket.gethostname().partition(".")[0], self.folder, pwd.getpwuid(os.geteuid()).pw_name
        lines = f"""
            ClusterName=trimaran
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort={self.port}
            SlurmUser={user}
            SlurmdUser={user}
            AuthType=auth/none
            CredType=cred/none
            AuthInfo=cred_expire=5
            MpiDefault=none
            StateSaveLocation={folder}/state
            SlurmctldPidFile={folder}/slurmctld.pid
            SlurmctldLogFile={folder}/slurmctld.log
            SlurmdSpoolDir={folder}/%n
            SlurmdPidFile={folder}/%n.pid
            SlurmdLogFile={folder}/%n.log
            JobCompType=jobcomp/filetxt
            JobCompLoc={folder}/ended.log
            ProctrackType=proctrack/{"cgroup" if self.with_cgroups else "linuxproc"}
            TaskPlugin=task/{"cgroup" if self.with_cgroups else "none"}
            SelectType=select/cons_tres
            SelectTypeParameters=CR_Core_Memory
            DefMemPerCPU={self.memory_mb // self.cpus}
            SlurmdParameters=config_overrides
            SchedulerType=sched/builtin
            SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
            FirstJobId={100 * (self.port % 10000) + 1}
            ReturnToService=2
            KillWait=5
            MinJobAge=300
            SlurmdTimeout=10
            MessageTimeout=5
            PropagateResourceLimitsExcept=MEMLOCK
            PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
        """.split("\n")
        return "\n".join([*(line.strip() for line in lines), *map(self._node, self.nodes), ""])

    def _node(self, node: Node) -> str:
        hostname = node.name if has_host_names() else socket.gethostname().partition(".")[0]
        return (
            f"NodeName={node.name} NodeHostname={hostname} NodeAddr={node.address} Port={node.port}"
            f" CPUs={self.cpus} RealMemory={self.memory_mb} State=UNKNOWN"
        )

    def _hosts(self) -> str:
        """Only seen inside the nodes."""
        return Path("/etc/hosts").read_text() + "".join(f"{node.address} {node.name}\n" for node in self.nodes)
