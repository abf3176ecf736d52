"""The machine this runs on, from the operating system and the driver: as a Cluster, whose speed is measured for 0.2 s,
and as the HostFacts of a probe. Without torch.

`cluster: here` in a job file, and `--on here`, mean what `detect_cluster` returns.
"""

import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trimaran.probe.result import HostFacts
from trimaran.spec import Cluster, Device, Link, Mistake, presets

GIB = 2**30

# By the name that nvidia-smi shows: the cluster preset with the card's peak, bandwidth and SMs, which it does not show.
# Whole names, because a GH200 or an A100 of 40 GB is another card.
KNOWN_GPUS = {
    "Tesla V100-SXM2-32GB": "jean-zay-v100-32gb",
    "Tesla V100-SXM2-16GB": "jean-zay-v100-16gb",
    "NVIDIA A100-SXM4-80GB": "jean-zay-a100-80gb",
    "NVIDIA H100 80GB HBM3": "dgx-h100",
    "NVIDIA H200": "hgx-h200",
}


def detect_cluster() -> Cluster:
    """One node: the GPUs that nvidia-smi shows, or without any one device per CPU core."""
    return _gpus() or _cpu()


def _gpus() -> Cluster | None:
    cards = _nvidia_smi()
    if not cards:
        return None
    names = sorted({name for name, _ in cards})
    if len(names) > 1:
        raise Mistake(
            f"This machine has different GPUs ({', '.join(names)}), but a cluster has one kind of device;"
            " choose some with CUDA_VISIBLE_DEVICES."
        )
    if names[0] not in KNOWN_GPUS:
        raise Mistake(
            f"This machine has the GPU {names[0]!r}, whose peak and bandwidth Trimaran does not know; describe it in a"
            " cluster file (`preset: hgx-h200` with `device`, `devices_per_node`, `nodes`, `inside` and `between`"
            " changed) and give that file instead of 'here'."
        )
    cluster, source = presets.cluster(KNOWN_GPUS[names[0]]), "nvidia-smi on this machine"
    device = cluster.device
    memory_gib = min(memory for _, memory in cards)
    return cluster.replace(
        name=presets.HERE,
        nodes=1,
        devices_per_node=len(cards),
        device=device.replace(memory_gib=memory_gib, sources={**device.sources, "memory_gib": source}).model_dump(),
        sources={**cluster.sources, "nodes": "this machine", "devices_per_node": source},
    )


def _nvidia_smi() -> list[tuple[str, float]]:
    """Name and GiB of each visible card; empty on a machine without a working one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shutil.which("nvidia-smi") is None or visible == "":
        return []
    query = ["nvidia-smi", "--query-gpu=memory.total,memory.reserved,name", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(
            query + ([f"--id={visible}"] if visible else []), capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        raise Mistake("nvidia-smi gave no answer in 20 seconds, so this machine's GPUs are unknown.") from None
    if shown.returncode:  # no driver, no card, or none that CUDA_VISIBLE_DEVICES allows
        return []
    rows = [line.split(", ", 2) for line in shown.stdout.splitlines() if line.count(", ") >= 2]
    # Old drivers do not count what they reserve in the total, and show no number for it.
    return [(name, (int(total) - (int(kept) if kept.isdigit() else 0)) / 1024) for total, kept, name in rows]


def _cpu() -> Cluster:
    """A CPU machine: one device per core, so that a layout can be tried with one process on each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tflops, gb_per_s = _measure_cores(cores)
    assumed = "assumed until `trimaran probe` measures it"
    device = Device(
        name=f"cpu-{platform.machine()}",
        peak_tflops=dict.fromkeys(("fp32", "bf16", "fp16", "fp8"), tflops),
        memory_gib=math.floor(_memory_bytes() / cores / GIB * 100) / 100,
        memory_gb_per_s=gb_per_s,
        units=1,
        sources={
            "peak_tflops": "measured here by fp32 GEMMs on all cores, divided by the cores;"
            " PyTorch emulates bf16, fp16 and fp8 on a CPU, so they are given the same figure",
            "memory_gib": "operating system or its limit for this process, divided by the cores",
            "memory_gb_per_s": "measured here by large copies on all cores, divided by the cores",
            "units": "one core",
        },
    )
    link = Link(name="shared memory", gb_per_s=2.0, latency_us=50.0, source=f"gloo between processes, {assumed}")
    return Cluster(
        name=presets.HERE,
        device=device,
        devices_per_node=cores,
        cores=cores,
        nodes=1,
        inside=link,
        between=link,
        context_gib=0.28,
        slack=0.02,
        sources={
            "devices_per_node": "cores this process may use",
            "cores": "cores this process may use",
            "nodes": "this machine",
            "context_gib": "resident size of a Python process that has imported torch 2.13's distributed modules",
            "slack": assumed,
        },
    )


def _measure_cores(cores: int) -> tuple[float, float]:
    """TFLOP/s and GB/s of one core while all are busy, in about 0.2 s."""
    import numpy as np

    side, copied = 768, 2**27 // cores  # 128 MiB over all cores, read and written: more than caches hold
    factors = [np.ones((side, side), np.float32) for _ in range(cores)]
    arrays = [(np.ones(copied, np.uint8), np.ones(copied, np.uint8)) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        # Copies first: idle BLAS threads spin for a while. BLAS may use all cores for one GEMM, or one core
        # (OMP_NUM_THREADS=1); then a GEMM on each core is faster.
        copies = _best_rate(pool, lambda i: np.copyto(*arrays[i]), cores)
        gemms = max(_best_rate(pool, lambda i: np.matmul(factors[i], factors[i]), at_once) for at_once in (1, cores))
    tflops, gb_per_s = gemms * 2 * side**3 / 1e12, copies * 2 * copied / 1e9
    return float(f"{tflops / cores:.3g}"), float(f"{gb_per_s / cores:.3g}")


def _best_rate(pool: ThreadPoolExecutor, work: Callable[[int], object], at_once: int) -> float:
    """Calls per second in the best of the rounds that 0.06 s allow, one call on each thread."""
    best, end = math.inf, time.perf_counter() + 0.06
    while best == math.inf or time.perf_counter() < end:
        start = time.perf_counter()
        list(pool.map(work, range(at_once)))
        best = min(best, time.perf_counter() - start)
    return at_once / best


def _memory_bytes(root: Path = Path("/")) -> int:
    """Physical memory, or the smallest limit among this process's control groups and their parents."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # Version 2 has one tree without controllers in this file; version 1 one tree for each.
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        for folder in [group, *group.parents]:
            file = folder / ("memory.limit_in_bytes" if controllers else "memory.max")
            if folder.is_relative_to(top) and file.exists() and file.read_text().strip().isdigit():  # else 'max'
                limits.append(int(file.read_text()))
    return min(limits)


def host_facts(gpus: tuple[str, ...], torch_version: str) -> HostFacts:
    cores = os.sched_getaffinity(0)
    numa_nodes = Path("/sys/devices/system/node").glob("node[0-9]*")
    return HostFacts(
        cpu=_cpu_name(),
        cores=len(cores),
        numa_nodes=max(1, sum(bool(cores & _cpus(node)) for node in numa_nodes)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 2),
        gpus=gpus,
        driver=_driver() if gpus else None,
        torch=torch_version,
        network_gbit_per_s=_network(),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
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


def _network() -> dict[str, float]:
    """Gbit/s of every interface that reports it; InfiniBand cards report theirs elsewhere."""
    speeds = {}
    for file in sorted(Path("/sys").glob("class/net/*/speed")):
        try:
            megabits = int(file.read_text())
        except (OSError, ValueError):  # it is down, or has no speed
            continue
        if megabits > 0:
            speeds[file.parent.name] = megabits / 1e3
    for file in sorted(Path("/sys").glob("class/infiniband/*/ports/*/rate")):
        rate = re.match(r"[\d.]+", file.read_text())
        if rate and float(rate[0]) > 0:
            speeds[f"{file.parts[-4]}/{file.parts[-2]}"] = float(rate[0])
    return speeds
