"""Estimate: how long a whole training takes and what it costs on each number of nodes, failures included."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trimaran.planner.plan import RankedLayout, ranked_layouts
from trimaran.planner.question import Question, as_integer
from trimaran.planner.ranking import search
from trimaran.planner.relax import explain_impossible
from trimaran.planner.reliability import Failures, Reliability, reliability
from trimaran.planner.tables import ShownAsTables, TitledTable, data_frame, short_layout, short_number
from trimaran.spec import Cluster, Mistake
from trimaran.spec.bounds import LEAST, MOST
from trimaran.spec.mistake import shortened

if TYPE_CHECKING:
    import pandas

MOST_DEVICES = 100_000
MOST_TOKENS = 10**18
LEAST_GOODPUT = 1e-6  # below which a run never ends
NEVER_ENDS = "fails too often to reach a checkpoint: this run never ends"


@dataclass(frozen=True)
class NodeEstimate:
    """A whole training on one number of nodes, in the fastest layout that uses all of them."""

    nodes: int
    devices: int
    step: RankedLayout
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
        """Useful time over wall time."""
        return self.failures.goodput if self.failures else 1.0

    def row(self) -> dict[str, Any]:
        """As `trimaran estimate --json` has it."""
        return {
            "nodes": self.nodes,
            "devices": self.devices,
            "layout": self.step.layout.to_dict(),
            "seconds_per_iteration": self.step.seconds,
            "seconds_low": self.step.seconds_low,
            "seconds_high": self.step.seconds_high,
            "dominant_uncertainty": self.step.uncertain_most_about,
            "iterations": self.iterations,
            "days": self.days,
            "days_low": self.days_low,
            "days_high": self.days_high,
            "device_hours": self.device_hours,
            "energy_mwh": self.energy_mwh,
            "cost": self.cost,
            "goodput": self.goodput,
            "failures": None if self.failures is None else asdict(self.failures),
        }

    def cells(self) -> dict[str, str]:
        """The row as tables show it, by column; without energy, cost or failures where they are not known."""
        cells = {
            "nodes": str(self.nodes),
            "devices": f"{self.devices:,}",
            "layout": short_layout(self.step.layout),
            "sec/it": f"{self.step.seconds:.4g}",
            "days": short_number(self.days),
            "80 % interval": f"{short_number(self.days_low)} to {short_number(self.days_high)}",
            "device-hours": f"{self.device_hours:,.0f}",
        }
        if self.energy_mwh is not None:
            cells["MWh"] = short_number(self.energy_mwh)
        if self.cost is not None:
            cells["cost"] = f"{self.cost:,.0f}"
        if self.failures:
            cells["goodput"] = f"{self.goodput:.1%}"
            cells["fails every"] = f"{short_number(self.failures.mtbf_hours)} h"
            cells["checkpoint every"] = f"{short_number(self.failures.checkpoint_every_minutes)} min"
        return cells


@dataclass(frozen=True, repr=False)
class Estimate(ShownAsTables):
    """Days, device-hours, energy and cost of a whole training, for each number of nodes that can run it."""

    question: Question
    tokens: int
    nodes: tuple[NodeEstimate, ...]  # by number of nodes
    impossible: Mapping[int, str]  # numbers of nodes that cannot run it, and why
    notes: tuple[str, ...]

    @property
    def fastest(self) -> NodeEstimate:
        return min(self.nodes, key=lambda one: one.days)

    @property
    def cheapest(self) -> NodeEstimate:
        """Of the fewest device-hours."""
        return min(self.nodes, key=lambda one: one.device_hours)

    @property
    def title(self) -> str:
        question = self.question
        return (
            f"{question.model.name} on {question.cluster.name}: {self.tokens / 1e9:g}B tokens in"
            f" {self.nodes[0].iterations:,} steps of {question.batch.size}, by {question.trainer.name} in"
            f" {question.precision}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each number of nodes, with the keys of `estimates` in `trimaran estimate --json`."""
        return [one.row() for one in self.nodes]

    def frame(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame; the layout's fields are columns such as `layout.tp`."""
        return data_frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """What `trimaran estimate --json` prints."""
        question = self.question
        return {
            "model": question.model.name,
            "cluster": question.cluster.name,
            "trainer": question.trainer.name,
            "precision": question.precision,
            "gbs": question.batch.size,
            "tokens": self.tokens,
            "estimates": self.rows(),
            "impossible": [{"nodes": nodes, "why": why} for nodes, why in self.impossible.items()],
            "notes": list(self.notes),
        }

    def tables(self) -> list[TitledTable]:
        cells = [one.cells() for one in self.nodes]
        notes = [*(f"{nodes} nodes: {why}." for nodes, why in self.impossible.items()), *self.notes]
        return [TitledTable(self.title, list(cells[0]), [list(row.values()) for row in cells], (2,), notes)]


def iterations_for(tokens: int, batch: int, seq_len: int) -> int:
    """Whole iterations, so at least these tokens."""
    return -(-tokens // (batch * seq_len))


def estimate_nodes(
    nodes: int,
    step: RankedLayout,
    iterations: int,
    failures: Failures | None = None,
    watts: float | None = None,
    price: float | None = None,
) -> NodeEstimate | None:
    """None where failures are so frequent that the run never ends. `watts` and `price` (of an hour) are a device's."""
    failing = reliability(nodes, failures) if failures else None
    goodput = failing.goodput if failing else 1.0
    if goodput < LEAST_GOODPUT:
        return None
    days = iterations * step.seconds / 86400 / goodput
    devices = nodes * step.question.cluster.devices_per_node
    device_hours = days * 24 * devices
    return NodeEstimate(
        nodes=nodes,
        devices=devices,
        step=step,
        iterations=iterations,
        failures=failing,
        days=days,
        days_low=days * step.seconds_low / step.seconds,
        days_high=days * step.seconds_high / step.seconds,
        device_hours=device_hours,
        energy_mwh=None if watts is None else device_hours * watts / 1e6,
        cost=None if price is None else device_hours * price,
    )


def parse_tokens(given: str | float) -> int:
    """'300B', '1.4T', '26e9', 26e9 or 300000000000 as a number of tokens."""
    text = f"{given:.0f}" if isinstance(given, float) else str(given)
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?(?:e\d{1,2})?)\s*([KMBT]?)\s*", text, re.IGNORECASE)
    tokens = round(float(match[1]) * 1000 ** " KMBT".index(match[2].upper() or " ")) if match else 0
    if not 0 < tokens <= MOST_TOKENS:
        raise Mistake(f"tokens is {shortened(given)}, but it is a number above zero such as 300B, 1.4T or 26000000000.")
    return tokens


def node_counts(given: str | int | Sequence[int], cluster: Cluster) -> list[int]:
    """'8,16,32' or [8, 16, 32] as given, else doublings up to the cluster's own nodes."""
    single = as_integer(given)
    listed: Any = given.split(",") if isinstance(given, str) else given if single is None else [single]
    if not isinstance(listed, Iterable):
        raise Mistake(f"nodes is {given!r}, but it lists numbers of nodes, such as [8, 16, 32].")
    parts = [text for part in listed if (text := str(part).strip())]
    if not parts:
        return doublings(cluster.nodes)
    wrong = next((part for part in parts if not part.isdecimal() or len(part) > 20 or int(part) < 1), None)
    if wrong is not None:
        raise Mistake(f"nodes has {shortened(wrong)}, but it lists numbers of nodes above zero, such as 8,16,32.")
    counts = sorted({int(part) for part in parts})
    if counts[-1] * cluster.devices_per_node > MOST_DEVICES:
        most = MOST_DEVICES // cluster.devices_per_node
        raise Mistake(
            f"{counts[-1]:,} nodes of {cluster.devices_per_node} are more than {MOST_DEVICES:,} devices,"
            f" beyond what this model of failures and networks can predict; at most {most:,} nodes."
        )
    return counts


def doublings(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def best_on(question: Question, nodes: int) -> RankedLayout | str:
    """The fastest layout that uses exactly so many nodes, or why there is none."""
    found = search(question.on_nodes(nodes), keep=1)
    if len(found):
        return ranked_layouts(question, found.take(slice(1)))[0]
    if found.counts.memory:
        has = question.cluster.device.memory_gib
        return f"does not fit: the leanest layout needs {found.least_memory_gib:.1f} GiB of {has:g}"
    return f"no layout fills {nodes} nodes with a batch of {question.batch.size}{_nearest_below(question, nodes)}"


def _nearest_below(question: Question, nodes: int) -> str:
    """The most nodes, fewer than these, that some layout fills."""
    found = search(question.on_nodes(nodes).without("nodes"), keep=1)
    if not len(found):
        return ""
    return f", but one fills {int(found.rows.devices.max()) // question.cluster.devices_per_node}"


def make_estimate(
    question: Question,
    tokens: str | float = "300B",
    nodes: str | int | Sequence[int] = "",
    *,
    watts: float | None = None,
    price: float | None = None,
    mtbf_hours: float | None = None,
    checkpoint_seconds: float = 60.0,
    restart_minutes: float = 10.0,
) -> Estimate:
    """The fastest layout of each number of nodes, made into days; `trimaran.estimate` says what is what."""
    given = {"watts": watts, "price": price, "mtbf_hours": mtbf_hours}
    may_be_zero = {"checkpoint_seconds": checkpoint_seconds, "restart_minutes": restart_minutes}
    for name, value in {**given, **may_be_zero}.items():
        least = "at least" if name in may_be_zero else "above"
        good = isinstance(value, int | float) and (LEAST <= value <= MOST or (name in may_be_zero and value == 0))
        if not good and not (value is None and name in given):
            raise Mistake(f"{name} is {shortened(value)}, but it must be {least} zero and finite, up to {MOST:g}.")
    wanted, counts = parse_tokens(tokens), node_counts(nodes, question.cluster)
    failures = None if mtbf_hours is None else Failures(mtbf_hours, checkpoint_seconds, restart_minutes * 60)
    device = question.cluster.device
    power = device.power_watts if watts is None else watts
    iterations = iterations_for(wanted, question.batch.size, question.model.seq_len)
    found, impossible = list[NodeEstimate](), dict[int, str]()
    for count in counts:
        step = best_on(question, count)
        one = None if isinstance(step, str) else estimate_nodes(count, step, iterations, failures, power, price)
        if one is not None:
            found.append(one)
        else:
            impossible[count] = step if isinstance(step, str) else NEVER_ENDS
    if not found and mtbf_hours is not None and set(impossible.values()) == {NEVER_ENDS}:
        raise Mistake(
            f"With {mtbf_hours:g} hours between failures of a node, {counts[0]} nodes fail every"
            f" {mtbf_hours * 60 / counts[0]:.3g} minutes, too often to reach a checkpoint: this run never ends."
            " Fewer nodes, shorter checkpoints or shorter restarts are needed."
        )
    if not found:
        raise Mistake(explain_impossible(question.on_nodes(*counts)))
    made = Estimate(question, wanted, tuple(found), impossible, ())
    notes = [f"Soonest: {made.fastest.nodes} nodes, {short_number(made.fastest.days)} days."]
    if made.cheapest is not made.fastest:
        more = made.fastest.device_hours / made.cheapest.device_hours
        notes.append(f"Fewest device-hours: {made.cheapest.nodes} nodes; the soonest uses {more:.3g} times as many.")
    widest = made.fastest.step.uncertain_most_about
    notes.append(f"The interval holds 80 % of measurements; most of it is {widest}.")
    if watts is None and device.power_watts is not None:
        notes.append(
            f"Energy: {device.power_watts:g} W a device, the {device.name}'s own maximum (watts overrides it);"
            " hosts, network and cooling are not in it."
        )
    if failures is None:
        notes.append("No failures are assumed; the MTBF of a node (mtbf_hours) adds them.")
    return replace(made, notes=tuple(notes))
