"""A probe's measurements as a Cluster: what was seen replaces what was known or assumed, and says so."""

import re
from typing import Any

from trimaran.learn.fit import rounded
from trimaran.learn.probed_constants import probed_constants
from trimaran.probe.detect import KNOWN_GPUS
from trimaran.probe.result import ProbeResult
from trimaran.spec import Cluster, Device, Link, Mistake, presets

ASSUMED = Link(name="PCIe 4", gb_per_s=24, latency_us=10, source="Assumed: a single rank measures no link.")


def probed_cluster(measured: ProbeResult) -> Cluster:
    known = _known(measured)
    inside = _link(measured, "inside") or known.inside
    stand_in = inside.replace(source=f"There was one node, so the link inside it stands in. {inside.source}")
    between = _link(measured, "between") or (stand_in if measured.device_name not in KNOWN_GPUS else known.between)
    cluster = known.replace(
        name="here" if measured.nodes == 1 else f"{measured.nodes} probed nodes",
        nodes=measured.nodes,
        devices_per_node=measured.ranks // measured.nodes,
        device=_device(measured, known.device).to_dict(),
        inside=inside.to_dict(),
        between=between.to_dict(),
        context_gib=known.context_gib if measured.context_gib is None else rounded(measured.context_gib),
        communicator_gib=None if measured.ranks > 1 else known.communicator_gib,  # of several it is in the context
        probed={},
        constants={},
        spreads={},
        residual=None,
        conditions=(),
    )
    constants, spreads = probed_constants(measured, cluster)
    return cluster.replace(probed=constants, spreads=spreads, sources=_sources(measured, known))


def cpu_machine() -> Cluster:
    """This machine where PyTorch sees no GPU."""
    machine = presets.cluster(presets.HERE)
    if not machine.is_local_cpu:
        raise Mistake(
            f"This machine has {machine.devices} x {machine.device.name}, but this PyTorch sees no GPU; install PyTorch"
            " with CUDA, or set CUDA_VISIBLE_DEVICES to nothing to probe the CPU."
        )
    return machine


def _known(measured: ProbeResult) -> Cluster:
    """What data sheets or the operating system say about this machine."""
    if measured.device == "cpu":
        return cpu_machine().with_processes(measured.ranks // measured.nodes)
    if measured.device_name in KNOWN_GPUS:
        return presets.cluster(KNOWN_GPUS[measured.device_name])
    unknown = Device(
        name=re.sub(r"[^a-z0-9]+", "-", measured.device_name.lower()).strip("-"),
        peak_tflops=_best(measured),
        memory_gib=measured.device_memory_gib or 1.0,
        memory_gb_per_s=max(measured.traffic.copy_gb_per_s, measured.traffic.triad_gb_per_s),
        units=measured.units,
    )
    return Cluster(device=unknown, devices_per_node=1, inside=ASSUMED, between=ASSUMED, context_gib=0)


def _device(measured: ProbeResult, known: Device) -> Device:
    """A data sheet's peak and bandwidth stay, for efficiencies are shares of them; else the best that was seen."""
    seen, stated = by(measured), measured.device_name in KNOWN_GPUS
    # A V100 emulates bf16: its data sheet has none, and nobody should plan with it.
    best = {name: tflops for name, tflops in _best(measured).items() if not stated or name in known.peak_tflops}
    changes: dict[str, Any] = {"matmul_tflops": {**known.matmul_tflops, **best}, "units": measured.units}
    sources = {
        "matmul_tflops": f"Best of {len(measured.products)} GEMMs. {seen}",
        "units": "Seen by the same probe.",
    }
    if measured.device_memory_gib is not None:
        changes["memory_gib"] = rounded(measured.device_memory_gib)
        sources["memory_gib"] = f"Seen by CUDA. {seen}"
    if not stated:
        changes |= {"peak_tflops": best, "memory_gb_per_s": rounded(measured.traffic.copy_gb_per_s)}
        sources["peak_tflops"] = f"The best GEMM in each number format stands for the peak. {seen}"
        sources["memory_gb_per_s"] = f"A large copy, read and written bytes. {seen}"
    return known.replace(**changes, sources={**known.sources, **sources})


def _link(measured: ProbeResult, where: str) -> Link | None:
    """Bus bandwidth of the best all-reduce of the largest group, and the time of the smallest message to one other."""
    reduced, sent = measured.of_kind("all-reduce", where), measured.of_kind("send", where)
    if not reduced or not sent:
        return None
    ranks = reduced[-1].ranks
    best = max((c for c in reduced if c.ranks == ranks), key=lambda c: c.bus_gb_per_s)
    backend = "NCCL" if measured.device == "cuda" else "gloo"
    return Link(
        name=f"{backend} {where} {'a node' if where == 'inside' else 'nodes'}",
        gb_per_s=rounded(best.bus_gb_per_s),
        latency_us=rounded(sent[0].seconds * 1e6),
        source=f"Bus bandwidth of an all-reduce of {best.bytes / 2**20:.3g} MiB over {ranks} ranks; latency of a send"
        f" of {sent[0].bytes} bytes, {sent[0].at_once} at once. {by(measured)}",
    )


def _sources(measured: ProbeResult, known: Cluster) -> dict[str, str]:
    host, seen = measured.host, by(measured)
    machine = f"{host.cpu}, {host.cores} cores (NUMA nodes: {host.numa_nodes}), {host.memory_gib:g} GiB"
    machine += f"; {len(host.gpus)} x {host.gpus[0]}, driver {host.driver}" if host.gpus else ""
    network = ", ".join(f"{name} {speed:g} Gbit/s" for name, speed in host.network_gbit_per_s.items())
    memory = ("context_gib",) if measured.ranks > 1 else ("context_gib", "communicator_gib")
    kept = {name: known.sources[name] for name in memory if name in known.sources}
    if measured.context_gib is not None:
        kept["context_gib"] = f"Memory of the card in use, less the allocator's. {seen}"
    return kept | {
        "host": machine + (f"; {network}" if network else ""),
        "devices_per_node": f"Ranks of the probe on a node. {seen}",
        "nodes": f"Nodes of the probe. {seen}",
        "slack": "Assumed as before the probe, which does not measure it.",
        "probed": f"GEMMs, attention and elementwise work at the shapes of {measured.model}. {seen}",
        "spreads": "Scatter of the measurements around the cost model's expressions.",
    }


def by(measured: ProbeResult) -> str:
    ranks = f"{measured.ranks} ranks at once" if measured.ranks > 1 else "one rank"
    return f"Measured by `{measured.command}` on {measured.date}, {ranks}, torch {measured.host.torch}."


def _best(measured: ProbeResult) -> dict[str, float]:
    return {name: rounded(best) for name in ("fp32", "bf16", "fp16") if (best := measured.best_tflops(name))}
