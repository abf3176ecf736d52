"""The nearest valid Job: the fewest fields changed, each as little as possible."""

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from trimaran.spec.batch import Batch, Ramp
from trimaran.spec.model import round_up
from trimaran.spec.rules import problems
from trimaran.spec.trainer import Optimizer, Recompute, Schedule

if TYPE_CHECKING:
    from trimaran.spec.job import Job


# Added to the distance of a change: the layout is there to be changed, the model is what the user wants.
PENALTY = {"layout": 0.0, "batch": 0.0, "cluster": 0.5, "model": 1.0}

BITS = {"fp8": 8, "bf16": 16, "fp16": 16.1, "fp32": 32}  # bf16 first: it needs no loss scaling


class FieldChange(NamedTuple):
    """One field set to another value; distance in doublings for numbers, plus the penalty of that part."""

    field: str
    value: Any
    distance: float

    def apply(self, job: "Job") -> "Job":
        name, _, inner = self.field.partition(".")
        value = getattr(job, name).model_copy(update={inner: self.value}) if inner else self.value
        return job.model_copy(update={name: value})


def suggest_change(job: "Job") -> str:
    """' The nearest Job that works: layout.dp = 4.', or '' when nothing close works."""
    changes = nearest_changes(job)
    if not changes:
        return ""
    listed = ", ".join(f"{change.field} = {_format(change.value)}" for change in changes)
    return f" The nearest Job that works: {listed}."


def nearest_changes(job: "Job") -> tuple[FieldChange, ...]:
    fields = [list(changes) for changes in _candidates(job)]
    for many in (1, 2):
        best: tuple[float, tuple[FieldChange, ...]] | None = None
        for chosen in combinations(fields, many):
            for changes in product(*chosen):
                distance = sum(change.distance for change in changes)
                if best is not None and distance >= best[0]:
                    continue
                changed = job
                for change in changes:
                    changed = change.apply(changed)
                if not problems(changed):
                    best = distance, changes
        if best:
            return best[1]
    return ()


def _candidates(job: "Job") -> Iterator[Iterable[FieldChange]]:
    """Changes by field, the most natural first: of equal distances the earlier field wins."""
    layout, model, cluster = job.layout, job.model, job.cluster
    yield _numbers("layout", "dp", layout.dp, _around(layout.dp) | _quotient(cluster.devices, layout.tp * layout.pp))
    yield _numbers("layout", "micro_batch", layout.micro_batch, _around(layout.micro_batch))
    yield _numbers("layout", "pp", layout.pp, _around(layout.pp) | _quotient(cluster.devices, layout.tp * layout.dp))
    yield _numbers("layout", "tp", layout.tp, _around(layout.tp) | _quotient(cluster.devices, layout.dp * layout.pp))
    yield _batches(job)
    yield _numbers("cluster", "nodes", cluster.nodes, _quotient(layout.devices, cluster.devices_per_node))
    choices = {
        "split": ("even", "weighted"),
        "schedule": get_args(Schedule),
        "recompute": get_args(Recompute),
        "sequence_parallel": (False,),
    }
    for name, values in choices.items():
        yield [_set_part("layout", name, value, 0.9) for value in values if value != getattr(layout, name)]
    yield [_set_part("layout", "zero", n, 0.3 * abs(n - layout.zero)) for n in range(4) if n != layout.zero]
    yield _numbers("layout", "virtual_stages", layout.virtual_stages, {1, 2})
    yield [
        FieldChange("precision", name, abs(log(BITS[name] / BITS[job.precision], 2)))
        for name in job.trainer.precisions
        if name != job.precision
    ]
    yield [FieldChange("optimizer", name, 1.0) for name in get_args(Optimizer) if name != job.optimizer]
    for name, multiple in (("layers", layout.stages), ("ffn_hidden", layout.tp), ("padded_vocab", layout.tp)):
        now = getattr(model, name)
        if now is not None:
            up = round_up(now, multiple)
            yield _numbers("model", name, now, {up, up - multiple})


def _around(number: int) -> set[int]:
    """Small steps and integer factors around a number."""
    steps = {number + step for step in (-3, -2, -1, 1, 2, 3)}
    factors = {number * factor for factor in (2, 3, 4, 8)} | {number // factor for factor in (2, 3, 4, 8, 16)}
    return {n for n in steps | factors if n > 0}


def _quotient(number: int, part: int) -> set[int]:
    return {number // part} if number % part == 0 else set()


def _numbers(part: str, name: str, now: int, others: set[int]) -> list[FieldChange]:
    return [_set_part(part, name, n, abs(log(n / now, 2))) for n in sorted(others) if n not in (now, 0)]


def _batches(job: "Job") -> list[FieldChange]:
    """The same number of ramp-up steps, every batch size rounded to a multiple of dp x micro batch."""
    unit = job.layout.dp * job.layout.micro_batch
    size, ramp = job.batch.size, job.batch.ramp
    if ramp is None:
        return [
            FieldChange("batch.size", n, abs(log(n / size, 2)))
            for n in {round_up(size, unit), round_up(size, unit) - unit} - {0, size}
        ]
    start = max(unit, round(ramp.start / unit) * unit)
    increment = max(unit, round(ramp.increment / unit) * unit)
    end = start + max(0, round((size - start) / increment)) * increment
    distance = sum(abs(log(a / b, 2)) for a, b in ((start, ramp.start), (increment, ramp.increment), (end, size)))
    if not distance:
        return []
    new = Batch(size=end, ramp=Ramp(start=start, increment=increment, samples=ramp.samples))
    return [FieldChange("batch", new, distance)]


def _set_part(part: str, name: str, value: Any, distance: float) -> FieldChange:
    return FieldChange(f"{part}.{name}", value, distance + PENALTY[part])


def _format(value: Any) -> str:
    if isinstance(value, Batch) and value.ramp:
        return f"{value.size} with a ramp-up from {value.ramp.start} in steps of {value.ramp.increment}"
    return str(value)
