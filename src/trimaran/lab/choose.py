"""Which trials a sweep consists of: every combination that is possible, the fastest predicted first."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from trimaran.cost.predict import predict_jobs
from trimaran.planner.plan import Plan
from trimaran.spec import Job, Mistake, Sweep
from trimaran.spec.settings import apply_settings

SHORT = {"micro_batch": "mbs", "virtual_stages": "vp", "sequence_parallel": "sp"}


@dataclass(frozen=True)
class Candidate:
    """A Job to try, and what the cost model expects of it."""

    label: str  # what makes it differ from the others
    job: Job
    seconds: float
    low: float
    high: float
    memory_gib: float
    fits: bool


@dataclass(frozen=True)
class Refused:
    label: str
    why: str


def candidates(sweep: Sweep) -> tuple[list[Candidate], list[Refused]]:
    """By predicted seconds, those predicted not to fit last; and what is impossible, with the reason."""
    jobs, refused = jobs_of(sweep)
    found = [
        Candidate(label, p.job, p.seconds, p.low, p.high, p.fullest_gib, p.fits)
        for (label, _), p in zip(jobs, predict_jobs([job for _, job in jobs]), strict=True)
    ]
    return sorted(found, key=lambda candidate: (not candidate.fits, candidate.seconds)), refused


def jobs_of(sweep: Sweep) -> tuple[list[tuple[str, Job]], list[Refused]]:
    """Every possible combination once, with its label."""
    jobs, refused, seen = [], [], set()
    for settings in combinations(sweep):
        more = implied_settings(sweep, settings)
        label = label_of({**settings, **{field: value for field, value in more.items() if field == "layout.dp"}})
        try:
            made = {**settings, **more}
            job = apply_settings(sweep.base, [f"{field}={json.dumps(value)}" for field, value in made.items()])
            devices = job.layout.devices
            if sweep.devices is not None and devices != sweep.devices:
                raise Mistake(f"{label} is a layout of {devices} devices, but the sweep is of {sweep.devices}.")
        except Mistake as why:
            refused.append(Refused(label, str(why)))
            continue
        key = equivalence_key(job)
        if key not in seen:
            seen.add(key)
            jobs.append((label, job.replace(name=f"{sweep.name} {label}")))
    return jobs, refused


def sweep_of_plan(plan: Plan) -> Sweep:
    """The plan's layouts as alternatives of the best, labelled by the fields in which they differ."""
    base = plan.best.job
    layouts = [each.layout.to_dict() for each in plan]
    varying = [name for name in layouts[0] if any(layout[name] != layouts[0][name] for layout in layouts)]
    nodes_vary = len({each.nodes for each in plan}) > 1
    alternatives = [
        {f"layout.{name}": layout[name] for name in varying} | ({"cluster.nodes": each.nodes} if nodes_vary else {})
        for each, layout in zip(plan, layouts, strict=True)
    ]
    name = f"{base.model.name}-best-{len(plan)}"
    return Sweep.of({"name": name, "base": base.model_dump(), "alternatives": alternatives})


def equivalence_key(job: Job) -> str:
    """Equal for combinations that are the same training: with one replica ZeRO has nothing to shard."""
    layout = job.layout.replace(zero=0) if job.layout.dp == 1 else job.layout
    return job.replace(name="", layout=layout.model_dump()).to_json()


def combinations(sweep: Sweep) -> Iterator[dict[str, Any]]:
    axes = [[(field, value) for value in values] for field, values in sweep.axes.items()]
    for together in sweep.alternatives or ({},):
        for values in itertools.product(*axes):
            yield {**together, **dict(values)}


def implied_settings(sweep: Sweep, settings: dict[str, Any]) -> dict[str, Any]:
    """What the settings imply without stating it: dp from the devices, nodes from the layout. On a machine of
    processes `apply_settings` makes as many as the layout has."""
    base = sweep.base
    axes = {name: settings.get(f"layout.{name}", getattr(base.layout, name)) for name in ("dp", "tp", "pp")}
    if any(not isinstance(size, int) or size < 1 for size in axes.values()):
        return {}  # which the Job will refuse
    found: dict[str, Any] = {}
    if sweep.devices is not None and "layout.dp" not in settings:
        axes["dp"] = found["layout.dp"] = max(1, sweep.devices // (axes["tp"] * axes["pp"]))
    nodes, left = divmod(prod(axes.values()), base.cluster.devices_per_node)
    processes = base.cluster.is_local_cpu and base.cluster.nodes == 1
    if not processes and not left and nodes != base.cluster.nodes and "cluster.nodes" not in settings:
        found["cluster.nodes"] = nodes
    return found


def label_of(settings: dict[str, Any]) -> str:
    """'tp 2, mbs 4, CUDA_LAUNCH_BLOCKING 1'."""
    names = {field: field.rpartition(".")[2] for field in settings}
    said = ", ".join(f"{SHORT.get(name, name)} {settings[field]}" for field, name in names.items())
    return said or "as it is"
