"""SlurmCluster: slurmctld and a slurmd for each node, on this machine, for as long as the block lasts.

By hand: `python -m tests.slurm.cluster --nodes 4` starts one and keeps it until Ctrl-C; the line that it prints makes
sbatch, srun and squeue in another shell talk to it. It needs Debian's slurmctld, slurmd and slurm-client (no munge).

As root each node has a host name of its own, and finds the others by theirs. Otherwise all nodes have this machine's,
and ranks meet by MASTER_ADDR.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from tests.slurm.settings import CGROUPS, Node, Settings, has_host_names

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # ours, Debian's daemons
LIMIT_SECONDS = 300.0  # for hangs, not for speed
NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && exec slurmd -D -N "$1"'


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]


class SlurmCluster:
    """Several at once, in different processes too, do not disturb each other: ports, names and job ids differ."""

    def __init__(self, nodes: int = 4, cpus: int = 4, memory_mb: int = 4000) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        first, *ports = free_ports(nodes + 1)
        described = (
            Node(f"s{first}n{index}", f"127.0.77.{index + 1}" if has_host_names() else "127.0.0.1", port)
            for index, port in enumerate(ports)
        )
        self.settings = Settings(self.folder, first, tuple(described), cpus, memory_mb)
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self.settings.nodes]

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs: this process's variables, without those of a job it may itself be."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        meeting = {} if has_host_names() else {"MASTER_ADDR": "127.0.0.1"}  # there a node's name is no host's
        return {**outer, **meeting, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> "SlurmCluster":
        self.settings.write()
        (self.folder / "state").mkdir()
        try:
            self.start_controller()
            for name in self.nodes:
                self.start_node(name)
            self._until(lambda: set(self.states().values()) == {"idle"}, "all nodes are idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_controller(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D"])
        self._until(lambda: self.command("scontrol", "ping").returncode == 0, "the controller answers")

    def stop_controller(self) -> None:
        """What it knew is read again when it starts."""
        self._end("slurmctld", signal.SIGTERM)

    def start_node(self, name: str) -> None:
        if has_host_names():
            alone = ["unshare", "--mount", "--uts", "sh", "-c", NODE, "node", name, str(self.folder / "hosts")]
            self._start(name, alone)
        else:
            self._start(name, ["slurmd", "-D", "-N", name])

    def fail_node(self, name: str) -> None:
        """As when its power goes: everything on it is gone at once, and the controller finds out by itself (26 s)."""
        while processes := self._processes(name):
            for number in (signal.SIGSTOP, signal.SIGKILL):  # none may live to tell of another's end
                for process in processes:
                    with suppress(ProcessLookupError):
                        os.kill(process, number)
        self._end(name, signal.SIGKILL)

    def notice_failure(self, name: str) -> None:
        """What the controller would do when it found out."""
        self.command("scontrol", "update", f"nodename={name}", "state=down", "reason=failed")

    def states(self) -> dict[str, str]:
        """Each node's state, as sinfo has it: idle, alloc, mix, down*; empty when the controller does not answer."""
        told = self.command("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
        return dict(line.split() for line in told.splitlines())

    def command(self, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """A client's command, waited for."""
        return subprocess.run(words, capture_output=True, text=True, input=input, env=self.environment, check=False)

    def stop(self) -> None:
        """Jobs, daemons, cgroups and files are gone, whatever state they were in."""
        for name in self.nodes:
            self.fail_node(name)
        self._end("slurmctld", signal.SIGKILL)
        self._until(self._removed_cgroups, "the cgroups of ended jobs could be removed")
        shutil.rmtree(self.folder)

    def _removed_cgroups(self) -> bool:
        """Not while a killed process is still on its way out."""
        for name in self.nodes:
            for left in CGROUPS.glob(f"*/slurm_{name}"):
                for folder, _, _ in os.walk(left, topdown=False):
                    with suppress(OSError):
                        os.rmdir(folder)
        return not any(list(CGROUPS.glob(f"*/slurm_{name}")) for name in self.nodes)

    def _processes(self, name: str) -> list[int]:
        """Of a node: its slurmd was told its name by us, its jobs by SLURM."""
        mark, found = f"SLURMD_NODENAME={name}".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is somebody else's
                if mark in file.read_bytes().split(b"\0"):
                    found.append(int(file.parent.name))
        return found

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],  # a killed session leaves no daemons
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, "SLURMD_NODENAME": name},
                start_new_session=True,
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        daemon = self.daemons.pop(name, None)
        if daemon is not None:
            daemon.send_signal(number)
            daemon.wait(LIMIT_SECONDS)

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                logs = "\n".join(file.read_text()[-2000:] for file in sorted(self.folder.glob("*.log")))
                raise TimeoutError(f"SLURM: {LIMIT_SECONDS:.0f} s were not enough until {what}.\n{logs}")
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """All held until all are chosen, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A SLURM on this machine until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=4, help="of each node; more than there are is fine")
    parser.add_argument("--memory-mb", type=int, default=4000, help="of each node")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with SlurmCluster(asked.nodes, asked.cpus, asked.memory_mb) as cluster, suppress(KeyboardInterrupt):
        print(f"export SLURM_CONF={cluster.folder}/slurm.conf", flush=True)
        signal.pause()
