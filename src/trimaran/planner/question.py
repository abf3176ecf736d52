"""Question: what the planner is asked. A model, a cluster of at most so many nodes, a batch, and what is fixed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast, get_args

from trimaran.cost.setups import precision_of
from trimaran.spec import Batch, Cluster, Job, Layout, Mistake, Model, Ramp, Setup, TrainerProfile, rules
from trimaran.spec.bounds import MOST_DEVICES
from trimaran.spec.cluster import Precision
from trimaran.spec.files import load_cluster, load_model, load_trainer
from trimaran.spec.mistake import did_you_mean, shortened
from trimaran.spec.trainer import Optimizer, Recompute, Schedule

INTEGER_FIELDS = ("nodes", "dp", "tp", "pp", "mbs", "virtual_stages", "zero")
NAMED_VALUES: dict[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "recompute": get_args(Recompute),
    "split": ("even", "weighted"),
    "sequence_parallel": ("true", "false"),
}
ALIASES = {"micro_batch": "mbs", "virtual": "virtual_stages", "sp": "sequence_parallel"}

Objective = Literal["time", "tokens-per-device-hour", "memory"]
Fix = Mapping[str, Any] | Iterable[str]  # {"tp": 8, "mbs": [1, 2]}, or "tp=8" and "mbs=1,2" as on the command line
S = TypeVar("S")


@dataclass(frozen=True)
class Question:
    model: Model
    cluster: Cluster  # its nodes are the most that may be used
    trainer: TrainerProfile
    batch: Batch
    precision: Precision
    optimizer: Optimizer = "adam"
    fixed: Mapping[str, frozenset[Any]] = field(default_factory=dict)  # field -> the only values allowed

    @classmethod
    def of(
        cls,
        model: str | Path | Model,
        on: str | Path | Cluster,
        gbs: int | Batch,
        nodes: int | None = None,
        *,
        ramp: str | tuple[int, int, int] | Ramp = "",
        fix: Fix = (),
        trainer: str | Path | TrainerProfile = "",
        precision: str = "",
        optimizer: str = "",
    ) -> Self:
        """From preset names, files or the objects themselves; an empty string is the default, which for the precision
        is that of a measured row that does not say."""
        for given, name, known in ((precision, "precision", Precision), (optimizer, "optimizer", Optimizer)):
            if given and given not in get_args(known):
                raise Mistake(f"{name} is {given!r}, but it is one of {', '.join(get_args(known))}.")
        cluster = with_nodes(_loaded("on", on, Cluster, load_cluster), nodes)
        return cls(
            model=_loaded("model", model, Model, load_model),
            cluster=cluster,
            trainer=_loaded("trainer", trainer or "trimaran", TrainerProfile, load_trainer),
            batch=make_batch(gbs, ramp),
            precision=cast(Precision, precision) if precision else precision_of(Setup(), cluster),
            optimizer=cast(Optimizer, optimizer or "adam"),
            fixed=parse_fix(fix),
        )

    @classmethod
    def of_job(cls, job: Job, nodes: int | None = None, fix: Fix = ()) -> Self:
        """Everything of a job but its layout; its own nodes are the most, unless more are offered."""
        cluster = with_nodes(job.cluster, nodes)
        return cls(job.model, cluster, job.trainer, job.batch, job.precision, job.optimizer, parse_fix(fix))

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def fixing(self, **values: Iterable[Any]) -> Self:
        """With these fields restricted to these values, whatever was fixed before."""
        return replace(self, fixed={**self.fixed, **{name: frozenset(allowed) for name, allowed in values.items()}})

    def on_nodes(self, *counts: int) -> Self:
        """With exactly one of these numbers of nodes."""
        return replace(self, cluster=with_nodes(self.cluster, max(counts))).fixing(nodes=counts)

    def without(self, name: str) -> Self:
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
        """Raise for what no layout can fix, before any is tried."""
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


def _loaded(name: str, given: Any, kind: type[S], load: Callable[[str], S]) -> S:
    if isinstance(given, kind):
        return given
    if not isinstance(given, str | Path):
        raise Mistake(f"{name} is {given!r}, but it is a preset's name, a file or a {kind.__name__}.")
    return load(str(given))


def with_nodes(cluster: Cluster, nodes: int | None) -> Cluster:
    if nodes is None:
        return cluster
    whole = as_integer(nodes)
    if whole is None or whole < 1:
        raise Mistake(f"nodes is {nodes!r}, but training needs at least 1 node.")
    return cluster.replace(nodes=whole)


def make_batch(size: int | Batch, ramp: str | tuple[int, int, int] | Ramp = "") -> Batch:
    """`ramp`: a batch ramp-up as Megatron writes it (start, increment, samples), also as text: '32,32,1000000'."""
    if isinstance(size, Batch):
        if ramp:
            raise Mistake(f"ramp is {ramp!r}, but the batch given is complete; give the ramp-up in the Batch.")
        return size
    whole = as_integer(size)
    if whole is None or whole < 1:
        raise Mistake(f"gbs is {size!r}, but a step needs at least 1 sample.")
    if not ramp:
        return Batch.of({"size": whole}, "The batch")
    if not isinstance(ramp, Ramp):
        listed: Any = re.split(r"[,\s]+", ramp.strip()) if isinstance(ramp, str) else ramp
        numbers = [str(number) for number in listed] if isinstance(listed, Iterable) else []
        if len(numbers) != 3 or not all(number.isdecimal() and number.strip("0") for number in numbers):
            raise Mistake(
                f"ramp is {shortened(ramp)}, but a ramp-up is START,INCREMENT,SAMPLES, such as 32,32,9765625."
            )
        ramp = Ramp.of(dict(zip(Ramp.model_fields, numbers, strict=True)), "The ramp-up")
    return Batch.of({"size": whole, "ramp": ramp}, "The batch")


def parse_fix(fix: Fix) -> dict[str, frozenset[Any]]:
    """{'tp': 4, 'mbs': [2, 4]}, or 'tp=4', 'mbs=2,4' as the command line has it; a field twice allows both."""
    texts = [fix] if isinstance(fix, str) else fix
    if not isinstance(texts, Iterable):
        raise Mistake(f"fix is {fix!r}, but it names fields and their values, such as {{'tp': 8, 'mbs': [1, 2]}}.")
    pairs = texts.items() if isinstance(texts, Mapping) else [str(text).partition("=")[::2] for text in texts]
    fixed: dict[str, frozenset[Any]] = {}
    for given, values in pairs:
        text, name = f"{given}={values}", ALIASES.get(str(given).strip(), str(given).strip())
        known = (*INTEGER_FIELDS, *NAMED_VALUES)
        if name not in known:
            raise Mistake(f"fix {shortened(text)} names no field of a layout.{did_you_mean(name, known)}")
        listed = values.split(",") if isinstance(values, str) else values if isinstance(values, Iterable) else [values]
        fixed[name] = fixed.get(name, frozenset()) | {_parse_value(name, str(value).strip(), text) for value in listed}
    return fixed


def _parse_value(name: str, value: str, text: str) -> Any:
    if name in NAMED_VALUES:
        if value.lower() not in NAMED_VALUES[name]:
            raise Mistake(f"fix {shortened(text)}: {name} is one of {', '.join(NAMED_VALUES[name])}.")
        return value.lower() == "true" if name == "sequence_parallel" else value.lower()
    least, most = (0, 3) if name == "zero" else (1, MOST_DEVICES)
    if not value.isdecimal() or len(value) > 20 or not least <= int(value) <= most:
        raise Mistake(f"fix {shortened(text)}: {name} is a whole number from {least} to {most:,}.")
    return int(value)


def as_integer(value: Any) -> int | None:
    """None if it is something else; NumPy's integers count, for they come from ranges and data frames."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
