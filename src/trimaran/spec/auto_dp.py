"""`layout.dp: auto`: as many replicas as the devices allow. A Job has the number; the global batch stays as it is, and
so do the losses per consumed sample."""

from collections.abc import Mapping
from math import gcd
from typing import Any

from pydantic import ValidationError

from trimaran.spec.batch import Batch
from trimaran.spec.cluster import Cluster
from trimaran.spec.job import Job
from trimaran.spec.layout import Layout
from trimaran.spec.rules import problems

AUTO = "auto"


def is_auto(values: Mapping[str, Any]) -> bool:
    layout = values.get("layout")
    return isinstance(layout, Mapping) and layout.get("dp") == AUTO


def resolve_dp(values: Mapping[str, Any], devices: int | None = None) -> dict[str, Any]:
    """The values of a Job with the largest dp that makes it valid, on a cluster reduced to the devices that are used.

    `devices`: how many there are, if not those of the cluster; on a CPU machine detected as `here` as many as cores.
    """
    if not is_auto(values):
        return dict(values)
    layout = values["layout"]
    one = {**values, "layout": {**layout, "dp": 1}}
    try:
        single = Layout.model_validate(one["layout"])
        cluster = Cluster.model_validate(values.get("cluster"))
        samples = gcd(*Batch.model_validate(values.get("batch")).sizes()) // single.micro_batch
        most = max(1, min(samples, (devices or _devices(cluster)) // single.devices))
        for dp in range(most, 0, -1):
            used = None if samples % dp else _reduce(cluster, dp * single.devices)
            resolved = {**one, "layout": {**layout, "dp": dp}, "cluster": used}
            # Trusted: an invalid Job would search for its nearest valid one.
            if used is not None and not problems(Job.model_validate(resolved, context={"trusted": True})):
                return resolved
    except ValidationError:  # building the Job reports it
        pass
    return one


def _devices(cluster: Cluster) -> int:
    processes = cluster.is_local_cpu and cluster.nodes == 1
    return (cluster.cores or cluster.devices) if processes else cluster.devices


def _reduce(cluster: Cluster, devices: int) -> dict[str, Any] | None:
    """The cluster with so many devices on as few nodes as possible, or None where they cannot be spread evenly."""
    nodes = min(cluster.nodes, -(-devices // cluster.devices_per_node))
    if devices % nodes:
        return None
    if cluster.is_local_cpu:
        cluster = cluster.with_processes(devices // nodes)
    return {**cluster.model_dump(), "nodes": nodes, "devices_per_node": devices // nodes}
