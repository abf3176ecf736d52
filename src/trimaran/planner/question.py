"""Question: what a planner is asked. A model, a cluster of at most so many nodes, a batch, and what is fixed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from trimaran.cost.setups import precision_of
from trimaran.spec import Batch, Cluster, Job, Layout, Mistake, Model, Ramp, Setup, TrainerProfile, rules
from trimaran.spec.cluster import Precision
from trimaran.spec.mistake import did_you_mean
from trimaran.spec.trainer import Optimizer, Recompute, Schedule

NUMBERS = ("nodes", "dp", "tp", "pp", "mbs", "virtual_stages", "zero")
WORDS: dict[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "recompute": get_args(Recompute),
    "split": ("even", "weighted"),
    "sequence_parallel": ("true", "false"),
}
SHORT = {"micro_batch": "mbs", "virtual": "virtual_stages", "sp": "sequence_parallel"}


@dataclass(frozen=True)
class Question:
    model: Model
    cluster: Cluster  # its nodes are the most that may be used
    trainer: TrainerProfile
    batch: Batch
    precision: Precision
    optimizer: Optimizer = "adam"
    fixed: Mapping[str, frozenset[Any]] = field(default_factory=dict)  # field -> the only values allowed

    def replace(self, **changes: Any) -> "Question":
        return replace(self, **changes)

    def without(self, name: str) -> "Question":
        return replace(self, fixed={key: values for key, values in self.fixed.items() if key != name})

    def allows(self, name: str, value: Any) -> bool:
        return name not in self.fixed or value in self.fixed[name]

    def job(self, layout: Layout) -> Job:
        """The complete Job of one layout, checked by the rules once more."""
        nodes = layout.devices // self.cluster.devices_per_node
        return Job(
            name=f"{self.model.name}-dp{layout.dp}-tp{layout.tp}-pp{layout.pp}-mbs{layout.micro_batch}",
            model=self.model,
            cluster=self.cluster.model_copy(update={"nodes": nodes}),
            trainer=self.trainer,
            layout=layout,
            batch=self.batch,
            precision=self.precision,
            optimizer=self.optimizer,
        )

    def check(self) -> None:
        """What no layout can mend, said before any is tried."""
        bare = Job.model_construct(
            model=self.model,
            cluster=self.cluster,
            trainer=self.trainer,
            layout=Layout(recompute=self.trainer.recompute[0]),
            batch=self.batch,
            precision=self.precision,
            optimizer=self.optimizer,
        )
        for problem in rules.software(bare):
            raise Mistake(problem)


def usual_precision(cluster: Cluster) -> Precision:
    """What one trains in where nothing is said: the same as a measured row that does not say."""
    return precision_of(Setup(), cluster)


def with_nodes(cluster: Cluster, nodes: int | None) -> Cluster:
    if nodes is None:
        return cluster
    if nodes < 1:
        raise Mistake(f"--nodes is {nodes}, but training needs at least 1 node.")
    return cluster.model_copy(update={"nodes": nodes})


def batch_of(size: int, ramp: str = "") -> Batch:
    """'32,32,1000000' is a ramp-up as Megatron writes it: start, increment, samples."""
    if size < 1:
        raise Mistake(f"--gbs is {size}, but a step needs at least 1 sample.")
    if not ramp:
        return Batch(size=size)
    numbers = re.split(r"[,\s]+", ramp.strip())
    if len(numbers) != 3 or not all(number.isdigit() and int(number) for number in numbers):
        raise Mistake(f"--ramp is {ramp!r}, but a ramp-up is START,INCREMENT,SAMPLES, such as 32,32,9765625.")
    start, increment, samples = map(int, numbers)
    return Batch.of({"size": size, "ramp": Ramp(start=start, increment=increment, samples=samples)}, "The batch")


def fixed_of(texts: Iterable[str]) -> dict[str, frozenset[Any]]:
    """'tp=4', 'mbs=2,4', 'recompute=full' as allowed values; the same field twice allows both."""
    fixed: dict[str, frozenset[Any]] = {}
    for text in texts:
        given, _, listed = text.partition("=")
        name = SHORT.get(given.strip(), given.strip())
        known = (*NUMBERS, *WORDS)
        if name not in known:
            raise Mistake(f"--fix {text!r} names no field of a layout.{did_you_mean(name, known)}")
        values = [_value(name, value.strip(), text) for value in listed.split(",")]
        fixed[name] = fixed.get(name, frozenset()) | frozenset(values)
    return fixed


def _value(name: str, value: str, text: str) -> Any:
    if name in WORDS:
        if value.lower() not in WORDS[name]:
            raise Mistake(f"--fix {text!r}: {name} is one of {', '.join(WORDS[name])}.")
        return value.lower() == "true" if name == "sequence_parallel" else value.lower()
    smallest = 0 if name == "zero" else 1
    if not value.isdigit() or int(value) < smallest or (name == "zero" and int(value) > 3):
        raise Mistake(f"--fix {text!r}: {name} is a whole number {'from 0 to 3' if name == 'zero' else 'above 0'}.")
    return int(value)
