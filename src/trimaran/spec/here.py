"""The machine this runs on, as a Cluster: detected from the operating system, without torch."""

import os
import platform
import shutil
import subprocess

from trimaran.spec.cluster import Cluster, Device, Link

GIB = 2**30

# nvidia-smi names a card; what it cannot say (peak, bandwidth, SMs) is taken from the cluster preset with that device.
KNOWN_GPUS = {
    "V100-SXM2-32GB": "jean-zay-v100-32gb",
    "V100-SXM2-16GB": "jean-zay-v100-16gb",
    "A100-SXM4-80GB": "jean-zay-a100-80gb",
    "H100 80GB HBM3": "dgx-h100",
    "H200": "hgx-h200",
}


def here() -> Cluster:
    """One node: the GPUs that nvidia-smi shows, else one device per CPU core."""
    return _gpus() or _cpu()


def _gpus() -> Cluster | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    shown = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    cards = [line.split(", ") for line in shown.stdout.splitlines() if ", " in line]
    if shown.returncode or not cards:
        return None
    name, mebibytes = cards[0]
    known = next((preset for key, preset in KNOWN_GPUS.items() if key in name), None)
    if known is None:
        return None
    from trimaran.spec import presets  # presets knows `here`; only a machine with GPUs needs the way back

    cluster = presets.cluster(known)
    return cluster.but(
        name="here",
        nodes=1,
        devices_per_node=len(cards),
        device=cluster.device.but(
            memory_gib=float(mebibytes) / 1024,
            sources={**cluster.device.sources, "memory_gib": "nvidia-smi on this machine"},
        ).model_dump(),
    )


def _cpu() -> Cluster:
    """A CPU machine: one device per core, so that a layout can be tried with one process on each."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    # 32 fp32 operations a cycle (two 8-wide fused multiply-adds) at 2 GHz: an order of magnitude until probed.
    peak = 0.064
    guess = "assumed until `trimaran probe` measures it"
    device = Device(
        name=f"cpu-{platform.machine()}",
        peak_tflops={"fp32": peak, "bf16": peak, "fp16": peak},
        memory_gib=round(memory_gib / cores, 2),
        memory_gb_per_s=10.0,
        units=1,
        sources={
            "peak_tflops": f"AVX2 core at 2 GHz, {guess}",
            "memory_gib": "operating system, divided by the cores",
            "memory_gb_per_s": guess,
            "units": "one core",
        },
    )
    link = Link(name="shared memory", gb_per_s=2.0, latency_us=50.0, source=guess)
    return Cluster(
        name="here",
        device=device,
        devices_per_node=cores,
        nodes=1,
        inside=link,
        between=link,
        context_gib=0.3,
        slack=0.02,
        sources={"context_gib": "a Python process with torch imported", "slack": guess},
    )
