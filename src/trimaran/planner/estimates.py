"""How long a whole training takes, and what it costs: the step's seconds, made into days with failures in them.

Failures of N nodes are a Poisson process of rate N / MTBF. A checkpoint stops the training; a failure loses the work
since the last one and costs a restart, which may fail too.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.cost.predict import interval
from trimaran.planner.question import Question
from trimaran.planner.ranking import search
from trimaran.spec import Cluster, Layout, Mistake

MOST_DEVICES = 100_000
MOST_TOKENS = 10**18
NEVER = 1e-6  # goodput below which a run is said never to end


@dataclass(frozen=True)
class Failures:
    node_mtbf_hours: float
    checkpoint_seconds: float = 60.0
    restart_seconds: float = 600.0

    def mtbf_seconds(self, nodes: int) -> float:
        """Of the whole job: any node's failure stops it."""
        return self.node_mtbf_hours * 3600 / nodes


@dataclass(frozen=True)
class Reliability:
    """What failures do to one job. Goodput: useful time over wall time."""

    mtbf_hours: float
    checkpoint_every_minutes: float  # of training between two checkpoints
    checkpoint_share: float  # of the wall time, writing checkpoints that count
    lost_share: float  # of the wall time, work and checkpoints done again, and restarts
    goodput: float


def daly_interval_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Training time between checkpoints that ends a run soonest.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
    Systems 22 (2006) 303-312: sqrt(2dM)·(1 + sqrt(d/2M)/3 + (d/2M)/9) - d for d < 2M, else M. The restart's
    length does not change it. Its leading term is J. W. Young's (CACM 17, 1974): sqrt(2dM).
    """
    d, m = checkpoint_seconds, mtbf_seconds
    if d >= 2 * m:
        return m
    ratio = d / (2 * m)
    return math.sqrt(2 * d * m) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - d


def expected_goodput(
    interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, mtbf_seconds: float
) -> float:
    """Useful over wall time, exactly, for Poisson failures that may also strike checkpoints and restarts.

    Daly's complete cost function: a segment of t training and d checkpoint takes M·e^(R/M)·(e^((t+d)/M) - 1).
    """
    m = mtbf_seconds
    exponent = (interval_seconds + checkpoint_seconds) / m
    if exponent + restart_seconds / m > 700:  # e^700: no segment ever ends
        return 0.0
    return interval_seconds / (m * math.exp(restart_seconds / m) * math.expm1(exponent))


def reliability(nodes: int, failures: Failures) -> Reliability:
    mtbf = failures.mtbf_seconds(nodes)
    checkpoint = failures.checkpoint_seconds
    # A free checkpoint would be written all the time; then only restarts remain.
    every = daly_interval_seconds(max(checkpoint, 1e-3), mtbf)
    goodput = expected_goodput(every, checkpoint, failures.restart_seconds, mtbf)
    checkpoints = goodput * checkpoint / every
    return Reliability(mtbf / 3600, every / 60, checkpoints, 1 - goodput - checkpoints, goodput)


@dataclass(frozen=True)
class Step:
    """The best layout on so many nodes: seconds of an iteration, their interval, and what it is wide for."""

    layout: Layout
    seconds: float
    low: float
    high: float
    dominant: str


@dataclass(frozen=True)
class Prices:
    watts_per_device: float | None = None
    per_device_hour: float | None = None


@dataclass(frozen=True)
class Estimate:
    nodes: int
    devices: int
    step: Step
    iterations: int
    failures: Reliability | None
    days: float
    days_low: float
    days_high: float
    device_hours: float
    energy_mwh: float | None
    cost: float | None

    @property
    def goodput(self) -> float:
        return self.failures.goodput if self.failures else 1.0


def iterations_for(tokens: int, batch: int, seq_len: int) -> int:
    """Whole iterations, so at least the tokens asked for."""
    return -(-tokens // (batch * seq_len))


def estimate(
    nodes: int, devices_per_node: int, step: Step, iterations: int, failures: Failures | None, prices: Prices
) -> Estimate | None:
    """None where failures come so often that the run never ends."""
    failing = reliability(nodes, failures) if failures else None
    goodput = failing.goodput if failing else 1.0
    if goodput < NEVER:
        return None
    days = iterations * step.seconds / 86400 / goodput
    devices = nodes * devices_per_node
    device_hours = days * 24 * devices
    watts, price = prices.watts_per_device, prices.per_device_hour
    return Estimate(
        nodes=nodes,
        devices=devices,
        step=step,
        iterations=iterations,
        failures=failing,
        days=days,
        days_low=days * step.low / step.seconds,
        days_high=days * step.high / step.seconds,
        device_hours=device_hours,
        energy_mwh=None if watts is None else device_hours * watts / 1e6,
        cost=None if price is None else device_hours * price,
    )


def tokens_of(text: str) -> int:
    """'300B', '1.4T', '26e9' or '300000000000' as a number of tokens."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([KMBT]?)\s*", text, re.IGNORECASE)
    tokens = round(float(match[1]) * 1000 ** " KMBT".index(match[2].upper() or " ")) if match else 0
    if not 0 < tokens <= MOST_TOKENS:
        raise Mistake(f"--tokens is {text!r}, but it is a number above zero such as 300B, 1.4T or 26000000000.")
    return tokens


def node_counts(text: str, cluster: Cluster) -> list[int]:
    """'8,16,32' as given, else doublings up to the cluster's own nodes."""
    if not text:
        return doublings(cluster.nodes)
    parts = [part.strip() for part in text.strip(", ").split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or int(part) < 1), None)
    if wrong is not None:
        raise Mistake(f"--nodes has {wrong!r}, but it lists numbers of nodes above zero, such as 8,16,32.")
    counts = sorted({int(part) for part in parts})
    if counts[-1] * cluster.devices_per_node > MOST_DEVICES:
        most = MOST_DEVICES // cluster.devices_per_node
        raise Mistake(
            f"{counts[-1]:,} nodes of {cluster.devices_per_node} are more than {MOST_DEVICES:,} devices,"
            f" beyond what this model of failures and networks can say; at most {most:,} nodes."
        )
    return counts


def doublings(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def on_nodes(question: Question, counts: Sequence[int]) -> Question:
    """The same question with exactly one of these numbers of nodes."""
    cluster = question.cluster.model_copy(update={"nodes": max(counts)})
    return question.replace(cluster=cluster, fixed={**question.fixed, "nodes": frozenset(counts)})


def best_step(question: Question, nodes: int) -> Step | str:
    """The fastest layout that uses exactly so many nodes, or why there is none."""
    found = search(on_nodes(question, [nodes]), keep=1)
    if len(found):
        best = found.take(np.array([0]))
        range_ = interval(best.rows, question.cluster, question.trainer)
        low, high = float(range_.low[0]), float(range_.high[0])
        return Step(best.layout(0), float(best.seconds[0]), low, high, range_.dominant[0])
    if found.counts.memory:
        has = question.cluster.device.memory_gib
        return f"does not fit: the leanest layout needs {found.least_memory_gib:.1f} GiB of {has:g}"
    return f"no layout fills {nodes} nodes with a batch of {question.batch.size}{_nearest_below(question, nodes)}"


def _nearest_below(question: Question, nodes: int) -> str:
    """The most nodes, fewer than these, that some layout fills."""
    free = question.replace(fixed={name: values for name, values in question.fixed.items() if name != "nodes"})
    found = search(free.replace(cluster=question.cluster.model_copy(update={"nodes": nodes})), keep=1)
    if not len(found):
        return ""
    return f", but one fills {int(found.rows.devices.max()) // question.cluster.devices_per_node}"


def curve(
    question: Question, counts: Sequence[int], tokens: int, failures: Failures | None, prices: Prices
) -> tuple[list[Estimate], dict[int, str]]:
    """An estimate for every number of nodes that can run, and why the others cannot."""
    iterations = iterations_for(tokens, question.batch.size, question.model.seq_len)
    estimates, without = list[Estimate](), dict[int, str]()
    for nodes in counts:
        step = best_step(question, nodes)
        if isinstance(step, str):
            without[nodes] = step
            continue
        one = estimate(nodes, question.cluster.devices_per_node, step, iterations, failures, prices)
        if one is None:
            without[nodes] = "fails too often to reach a checkpoint: this run never ends"
        else:
            estimates.append(one)
    return estimates, without
