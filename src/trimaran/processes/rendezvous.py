"""Whether this process is one of many that torchrun or SLURM started, and where those meet."""

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.spec import Mistake

# SLURM gives no port: one is derived from the job's step, below the ephemeral ports of Linux.
FIRST_PORT, PORTS = 20000, 12000


@dataclass(frozen=True)
class Rendezvous:
    """One rank of a run that torchrun or SLURM started, and where it meets the others."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """As torchrun states it, which is what PyTorch reads."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def find_rendezvous(environment: Mapping[str, str], devices: int) -> Rendezvous | None:
    """None: this process was started by itself. Another world size than the layout's devices is a Mistake."""
    found = _torchrun(environment) or _slurm(environment, devices)
    if found is not None and found.world_size != devices:
        raise Mistake(
            f"{found.world_size} processes were started, but dp x tp x pp = {devices};"
            f" start {devices}, or change the layout so that it has {found.world_size} devices."
        )
    if found is not None and found.world_size > 1:
        _check_host(found.host)
    return found


def started_processes(environment: Mapping[str, str]) -> int | None:
    """How many ranks torchrun or SLURM started; None: this process starts them."""
    name = "WORLD_SIZE" if "RANK" in environment else "SLURM_STEP_NUM_TASKS"
    count = environment.get(name, "")
    return int(count) if count.isdigit() and int(count) > 1 else None


def check_restarts(restarts: int, environment: Mapping[str, str]) -> None:
    """Ranks cannot restart each other: what started them must."""
    if "RANK" not in environment:
        if restarts:
            raise Mistake(
                "--restarts inside an srun step cannot start the step again;"
                " call `trimaran train` in the batch script without srun, and it starts the steps."
            )
        return
    allowed = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts > int(allowed):
        raise Mistake(
            f"--restarts {restarts} under torchrun, which restarts the ranks itself, and was allowed {allowed};"
            f" give torchrun --max-restarts {restarts}."
        )


def _check_host(name: str) -> None:
    """PyTorch would try to resolve it until its timeout."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise Mistake(
            f"The ranks should meet on {name}, but this machine cannot resolve that host name;"
            " set MASTER_ADDR to the address of the first node."
        ) from None


def is_rank_0(environment: Mapping[str, str]) -> bool:
    """Whether this process prints for all: it is rank 0, or the only one."""
    rank = environment.get("RANK") or (environment.get("SLURM_PROCID") if _in_step(environment) else None)
    return rank in (None, "0")


def _torchrun(environment: Mapping[str, str]) -> Rendezvous | None:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise Mistake(
            f"RANK and WORLD_SIZE say that this is one of several processes, but {' and '.join(missing)} is not set,"
            " so they cannot meet; start them with torchrun, or unset RANK and WORLD_SIZE."
        )
    return Rendezvous(
        rank=_number(environment, "RANK"),
        local_rank=_number(environment, "LOCAL_RANK", "0"),
        world_size=_number(environment, "WORLD_SIZE"),
        host=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
    )


def _in_step(environment: Mapping[str, str]) -> bool:
    """srun sets this variable; a batch script has no tasks of its own."""
    return "SLURM_STEP_NUM_TASKS" in environment


def _slurm(environment: Mapping[str, str], devices: int) -> Rendezvous | None:
    if not _in_step(environment):
        return None
    world = _number(environment, "SLURM_STEP_NUM_TASKS")
    if world == 1 and devices > 1:
        return None  # one task that has the node to itself and starts its own processes
    job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID", "0")
    return Rendezvous(
        rank=_number(environment, "SLURM_PROCID"),
        local_rank=_number(environment, "SLURM_LOCALID", "0"),
        world_size=world,
        host=environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        port=_number(environment, "MASTER_PORT", str(FIRST_PORT + (31 * job + step) % PORTS)),
    )


def first_host(nodes: str) -> str:
    """Of a node list such as 'gpu[03-07,11],login1'; expanded by SLURM itself where it is installed."""
    if "[" not in nodes:
        return nodes.split(",")[0]
    try:
        return host_names(nodes)[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return re.sub(r"\[(\d+).*", r"\1", nodes)


def host_names(nodes: str) -> list[str]:
    """Of a node list, expanded by SLURM."""
    shown = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def _number(environment: Mapping[str, str], name: str, default: str | None = None) -> int:
    value = environment.get(name) or default
    if value is None or not value.isdigit():
        raise Mistake(f"The environment variable {name} is {value!r}, but a whole number is needed.")
    return int(value)
