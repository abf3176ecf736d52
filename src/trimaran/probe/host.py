"""HostFacts of this machine, from the operating system and the driver."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import torch

from trimaran.probe.result import HostFacts

GIB = 2**30


def host_facts(root: Path = Path("/")) -> HostFacts:
    cores = os.sched_getaffinity(0)
    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return HostFacts(
        cpu=_cpu(root),
        cores=len(cores),
        numa_nodes=max(1, sum(bool(cores & _cpus(node)) for node in root.glob("sys/devices/system/node/node[0-9]*"))),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 2),
        gpus=gpus,
        driver=_driver() if gpus else None,
        torch=str(torch.__version__),
        network_gbit_per_s=_network(root),
    )


def _cpu(root: Path) -> str:
    info = root / "proc/cpuinfo"
    named = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return named[1].strip() if named else platform.machine()


def _cpus(node: Path) -> set[int]:
    """Of a list such as '0-3,8-11'."""
    ranges = (node / "cpulist").read_text().strip()
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return {cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1)}


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    shown = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return shown.stdout.partition("\n")[0].strip() or None


def _network(root: Path) -> dict[str, float]:
    """Gbit/s of every interface that reports it; InfiniBand cards report theirs elsewhere."""
    speeds = {}
    for file in sorted(root.glob("sys/class/net/*/speed")):
        try:
            megabits = int(file.read_text())
        except (OSError, ValueError):  # it is down, or has no speed
            continue
        if megabits > 0:
            speeds[file.parent.name] = megabits / 1e3
    for file in sorted(root.glob("sys/class/infiniband/*/ports/*/rate")):
        rate = re.match(r"[\d.]+", file.read_text())
        if rate and float(rate[0]) > 0:
            speeds[f"{file.parts[-4]}/{file.parts[-2]}"] = float(rate[0])
    return speeds
