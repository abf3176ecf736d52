"""When no layout exists: which constraint excludes the last ones, and the nearest value of one that leaves some."""

from math import log
from typing import Any

from trimaran.planner.question import Question, with_nodes
from trimaran.planner.ranking import Ranking, search
from trimaran.spec import Batch

DOUBLINGS = 8  # of the nodes or the batch that are tried as a remedy


def explain_impossible(question: Question) -> str:
    """The cause and a remedy, for a question that no layout answers."""
    where = f"{question.model.name} on up to {question.cluster.nodes} nodes of {question.cluster.name}"
    return f"No layout trains {where}: {_cause(question)} {_remedy(question)}"


def _cause(question: Question) -> str:
    """Constraints are added one after the other; the one that leaves nothing is the cause."""
    bare = question.replace(fixed={})
    found = search(bare, keep=1)
    if not len(found):
        return _cause_without_constraints(bare, found)
    before = found.counts.feasible
    for name, values in question.fixed.items():
        bare = bare.replace(fixed={**bare.fixed, name: values})
        left = search(bare, keep=1).counts.feasible
        if not left:
            return f"{_fix(name, values)} excludes the last {before:,} layouts."
        before = left
    raise AssertionError("this question has an answer")


def _cause_without_constraints(question: Question, found: Ranking) -> str:
    counts, device = found.counts, question.cluster.device
    if counts.memory:
        return (
            f"of {counts.memory:,} layouts the rules allow, the smallest needs {found.least_memory_gib:.1f} GiB,"
            f" but the device {device.name} has {device.memory_gib:g}."
        )
    if counts.refused:
        return f"{question.trainer.name}'s schedules refuse all {counts.refused:,} that divide."
    sizes = question.batch.sizes()
    batch = f"batches of {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"a batch of {sizes[0]}"
    return (
        f"no dp x tp x pp fills whole nodes of {question.cluster.devices_per_node} with {batch},"
        f" {question.model.heads} heads and {question.model.layers} layers."
    )


def _remedy(question: Question) -> str:
    relaxed = [nearest for name in question.fixed if (nearest := _nearest(question, name))]
    if relaxed:
        _, text = min(relaxed)
        return f"The nearest that works: {text}."
    bare, size = question.replace(fixed={}), question.batch.size
    if question.fixed and len(search(bare, keep=1)):
        return "No single fixed field is the cause; without any of them there are layouts."
    for factor in (2**power for power in range(1, DOUBLINGS + 1)):
        more = with_nodes(bare.cluster, bare.cluster.nodes * factor)
        found = search(bare.replace(cluster=more), "nodes", keep=1)
        if len(found):
            return f"The nearest that works: nodes={int(found.rows.devices[0]) // more.devices_per_node}."
        if bare.batch.ramp is None and len(search(bare.replace(batch=Batch(size=size * factor)), keep=1)):
            return f"The nearest that works: gbs={size * factor}."
    if bare.batch.ramp is not None and len(search(bare.replace(batch=Batch(size=size)), keep=1)):
        return "Without the ramp-up there are layouts."
    return f"Neither {2**DOUBLINGS} times the nodes nor {2**DOUBLINGS} times the batch helps."


def _nearest(question: Question, name: str) -> tuple[float, str] | None:
    """The value of one fixed field, nearest to those given, that leaves a layout."""
    found = search(question.without(name))
    best: tuple[float, str] | None = None
    for i in range(len(found)):
        layout = found.layout(i)
        if name == "nodes":
            value = layout.devices // question.cluster.devices_per_node
        else:
            value = getattr(layout, {"mbs": "micro_batch"}.get(name, name))
        distance = min(_distance(value, given) for given in question.fixed[name])
        if best is None or distance < best[0]:
            best = distance, _fix(name, [value])
    return best


def _distance(value: Any, given: Any) -> float:
    """In doublings for numbers; another name is at distance 1."""
    if isinstance(value, str) or isinstance(given, bool):
        return float(value != given)
    return abs(log((value + 0.5) / (given + 0.5), 2))


def _fix(name: str, values: Any) -> str:
    return f"{name}={','.join(str(value).lower() for value in sorted(values))}"
