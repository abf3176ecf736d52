"""PartialJob: what a launch file states of a Job. With a cluster, and a model if it states none, it becomes a Job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from trimaran.export.flags import Fields, count, nest
from trimaran.spec import Cluster, Job, Mistake, Model, presets
from trimaran.spec.model import drop_derived
from trimaran.spec.settings import build_job

NODES, DEVICES, DEVICES_PER_NODE = "nodes", "devices", "devices_per_node"  # stated by files, but not fields of a Job
DEGREES = ("dp", "tp", "pp")


@dataclass(frozen=True)
class PartialJob:
    """Nested plain values as a Job file has them, only those stated; also `nodes`, `devices`, `devices_per_node`."""

    values: dict[str, Any]
    trainer: str  # the preset's name
    unread: tuple[str, ...] = ()  # what was not understood, as written in the file
    by_replicas: Callable[[int], Fields] | None = None  # values that follow from dp, where the file states none


def complete_job(
    partial: PartialJob, cluster: Cluster, model: Model | None, name: str, settings: Sequence[str] = ()
) -> Job:
    """The Job that the file describes, on that cluster; what the file states overrides the model.

    Settings are applied as by `trimaran train --set`. What is still missing is a Mistake that names the option to give.
    """
    given = {setting.partition("=")[0].strip(): setting.partition("=")[2].strip() for setting in settings}
    stated = dict(partial.values)
    if "cluster.nodes" in given:
        stated.pop(DEVICES, None)
        nodes = count(given["cluster.nodes"])
        stated |= {} if nodes is None else {NODES: nodes}
    values = {key: value for key, value in stated.items() if key not in (NODES, DEVICES, DEVICES_PER_NODE)}
    values["model"] = _model(stated.get("model", {}), model, set(given), name)
    layout = dict(values.get("layout", {}))
    layout |= {axis: n for axis in DEGREES if (n := count(given.get(f"layout.{axis}", ""))) is not None}
    replica = max(1, layout.get("tp", 1) * layout.get("pp", 1))  # devices of one model replica
    machine = _machine(stated, cluster, layout["dp"] * replica if "dp" in layout else None, name)
    if "dp" not in layout:
        layout["dp"] = _replicas(layout, replica, machine, name)
    values |= {"layout": layout, "cluster": machine.model_dump()}
    if partial.by_replicas is not None:
        for noun, fields in nest(partial.by_replicas(layout["dp"])).items():
            values[noun] = {**values.get(noun, {}), **fields}
    if "size" not in values.get("batch", {}) and not given.keys() & {"batch", "batch.size"}:
        raise Mistake(f"{name} states no global batch; give it with --set batch.size=2048.")
    values["trainer"] = presets.trainer(partial.trainer).model_dump()
    values.setdefault("name", PurePath(name).stem or name)
    return build_job(values, settings, f"The job of {name}")


def _replicas(layout: Mapping[str, Any], replica: int, machine: Cluster, name: str) -> int:
    """dp where the file does not state it: as many replicas as there are devices for."""
    if machine.is_local_cpu:
        return 1
    if machine.devices % replica:
        raise Mistake(
            f"{name} splits the model over tp {layout.get('tp', 1)} x pp {layout.get('pp', 1)} = {replica} devices,"
            f" but {machine.nodes} nodes of {machine.devices_per_node} have {machine.devices}, which is not a multiple;"
            " give the nodes it runs on with --set cluster.nodes=48, or its own cluster with --on."
        )
    return machine.devices // replica


def _model(stated: Mapping[str, Any], model: Model | None, given: set[str], name: str) -> dict[str, Any]:
    if model is not None:
        return {**drop_derived(model.model_dump(), stated), **stated}
    missing = [
        field for field in ("layers", "hidden", "heads") if field not in stated and f"model.{field}" not in given
    ]
    if missing and "model" not in given:
        raise Mistake(
            f"{name} does not state the model's {', '.join(missing)}; give the model with --model, a preset's name"
            " or a file."
        )
    return dict(stated)


def _machine(stated: Mapping[str, Any], cluster: Cluster, layout_devices: int | None, name: str) -> Cluster:
    """The cluster with as many nodes as the file states, or as its layout needs, else all of them."""
    per_node = stated.get(DEVICES_PER_NODE)
    if per_node is not None and per_node != cluster.devices_per_node:
        cluster = cluster.replace(devices_per_node=per_node)
    if NODES in stated:
        return cluster.replace(nodes=stated[NODES])
    if cluster.is_local_cpu:
        return cluster  # its processes follow the layout
    devices = stated.get(DEVICES, layout_devices)
    if devices is None:
        return cluster
    nodes, rest = divmod(devices, cluster.devices_per_node)
    if nodes == 0:
        return cluster.replace(nodes=1, devices_per_node=rest)
    if rest:
        raise Mistake(
            f"{name} runs on {devices} devices, but a node of {cluster.name} has {cluster.devices_per_node},"
            " and they do not fill whole nodes; name the cluster it ran on with --on."
        )
    return cluster.replace(nodes=nodes)
