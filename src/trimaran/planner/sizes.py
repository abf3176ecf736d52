"""What fits: the fewest nodes that train a model, and the largest model that trains on some nodes."""

from typing import Any

import numpy as np

from trimaran.planner.plan import Plan, make_plan
from trimaran.planner.question import Question, with_nodes
from trimaran.planner.ranking import search
from trimaran.spec import Mistake, Model

ASPECT = 128  # hidden over layers in the GPT-3 family: 4096/32, 5120/40, 12288/96
HEAD = 128
STEP = 4  # of layers and heads, so that pipelines and tensor widths of 4 divide, and of 8 every other time
MOST_NODES = 2**14
MOST_LAYERS = 4096
SHOWN = 3  # layouts in the answer


def fewest_nodes(question: Question, most: int = MOST_NODES) -> Plan:
    """The fastest layouts on the smallest number of nodes that has any."""
    question.check()
    nodes, least = 1, float("inf")
    while nodes <= most:
        found = search(question.replace(cluster=with_nodes(question.cluster, nodes)), "nodes", keep=1)
        if len(found):
            enough = int(found.rows.devices[0]) // question.cluster.devices_per_node
            there = question.replace(cluster=with_nodes(question.cluster, enough))
            return make_plan(there, SHOWN)
        least = min(least, found.least_memory_gib)
        nodes = most if nodes < most < 2 * nodes else 2 * nodes
    device = question.cluster.device
    need = f"the smallest layout needs {least:.1f} GiB" if np.isfinite(least) else "no layout divides"
    raise Mistake(
        f"No number of nodes up to {most} trains {question.model.name}: {need}, and the device {device.name} has"
        f" {device.memory_gib:g}; a larger batch allows more devices, a smaller model or another optimizer needs less."
    )


def gpt_of_depth(layers: int, aspect: float = ASPECT, step: int = STEP, **more: Any) -> Model:
    """A GPT of this depth: hidden = aspect x layers, rounded to heads of 128 in such steps."""
    heads = max(1, round(aspect * layers / HEAD / step)) * step
    hidden = heads * HEAD
    return Model.of({"name": f"{hidden}x{layers}", "layers": layers, "hidden": hidden, "heads": heads, **more})


def largest_model(question: Question, aspect: float = ASPECT) -> tuple[Plan, Model]:
    """The plan of the deepest shape of this aspect that fits, and the next shape, which does not.

    Whether a depth fits is decided with the least memory a layout can need (micro batch 1 and full recompute, unless
    fixed otherwise). Depth is found by doubling and bisection, then a few steps further, since divisibility is not
    monotonic. On a single device nothing needs to be divisible.
    """
    like, step = question.model, 1 if question.cluster.devices == 1 else STEP
    more = {"step": step, "vocab": like.vocab, "seq_len": like.seq_len}
    smallest = {"mbs": frozenset([1]), "recompute": frozenset(["full"])}

    def fits(layers: int) -> bool:
        tight = question.replace(model=gpt_of_depth(layers, aspect, **more), fixed={**smallest, **question.fixed})
        return len(search(tight, "memory", keep=1)) > 0

    low, high = 0, step
    while fits(high) and high < MOST_LAYERS:
        low, high = high, 2 * high
    while high - low > step:
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if fits(middle) else (low, middle)
    for further in range(high + step, high + 4 * step, step):
        if fits(further):
            low, high = further, further + step
    if not low:
        model = gpt_of_depth(step, aspect, **more)
        raise Mistake(
            f"Not even {step} layers of hidden {model.hidden} train on {question.cluster.nodes} nodes of"
            f" {question.cluster.name} with a batch of {question.batch.size}."
        )
    there = question.replace(model=gpt_of_depth(low, aspect, **more))
    return make_plan(there, SHOWN), gpt_of_depth(high, aspect, **more)
