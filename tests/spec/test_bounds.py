"""Every count and quantity of a spec has an upper bound, above all real ones; within it nothing hangs or overflows."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trimaran.cost.parameters import stage_parameters, total_parameters
from trimaran.spec import Batch, Cluster, Job, Layout, Mistake, Model, Outcome, Setup, Sweep, TrainerProfile, presets
from trimaran.spec.base import Spec
from trimaran.spec.bounds import MOST_DEVICES, MOST_FFN_WIDTH, MOST_LAYERS, MOST_VOCABULARY, MOST_WIDTH
from trimaran.spec.files import load_job


def numbers(cls: type[Spec], before: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every field of a class and of those inside it that can be a number, with its constraints."""
    for name, field in cls.model_fields.items():
        for kind, limits in kinds(field.annotation, list(field.metadata)):
            if isinstance(kind, type) and issubclass(kind, Spec):
                yield from numbers(kind, f"{before}{name}.")
            elif kind in (int, float):
                yield before + name, limits


def kinds(annotation: Any, limits: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    if hasattr(annotation, "__metadata__"):
        yield from kinds(annotation.__origin__, [*limits, *annotation.__metadata__])
    elif get_args(annotation) and str(get_origin(annotation)) != "typing.Literal":
        for inner in get_args(annotation):
            yield from kinds(inner, limits)
    else:
        yield annotation, limits


@pytest.mark.parametrize("cls", [Job, Setup, Outcome, Sweep], ids=lambda cls: cls.__name__)
def test_every_number_has_an_upper_bound(cls: type[Spec]) -> None:
    found = dict(numbers(cls))
    assert len(found) > 10
    free = [name for name, limits in found.items() if "le=" not in str(limits) and "lt=" not in str(limits)]
    assert set(free) <= {"last_loss"}  # which is shown, and nothing is computed from it


def test_the_largest_model_has_its_parameters_counted_exactly() -> None:
    """In 64-bit integers as in Python's own, which have no end: 4 h^2 + 2 h ffn a layer, and the embedding."""
    largest = Model(
        layers=MOST_LAYERS,
        hidden=MOST_WIDTH,
        heads=MOST_WIDTH,
        ffn_hidden=MOST_FFN_WIDTH,
        vocab=MOST_VOCABULARY,
        bias=False,
        norm="rmsnorm",
        position="alibi",
    )
    matrices = 4 * MOST_WIDTH**2 + 2 * MOST_WIDTH * MOST_FFN_WIDTH
    layers = MOST_LAYERS * (matrices + 2 * MOST_WIDTH)
    embedding = MOST_VOCABULARY * MOST_WIDTH
    assert total_parameters(largest) == layers + embedding + MOST_WIDTH
    assert int(stage_parameters(largest, Layout())[0]) == layers + embedding + MOST_WIDTH


def test_a_width_that_is_not_divisible_gets_its_nearest_divisor_without_trying_all() -> None:
    """1048573 is prime."""
    with pytest.raises(Mistake, match="nearest that works: 1 heads of 1048573"):
        Model.of({"layers": 1, "hidden": 1048573, "heads": 7})


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (Model, "hidden", 10**24),
        (Model, "layers", 10**400),
        (Layout, "pp", 99999999999),
        (Cluster, "nodes", 10**400 - 1),
        (Cluster, "context_gib", math.nan),
        (Batch, "size", 2**63),
    ],
)
def test_a_value_beyond_its_bound_gets_a_short_sentence(cls: type[Spec], field: str, value: object) -> None:
    good: dict[str, Any] = {
        "Model": presets.model("gpt-1b3").to_dict(),
        "Cluster": presets.cluster("hgx-h200").to_dict(),
    }.get(cls.__name__, {})
    with pytest.raises(
        Mistake, match=f"This {cls.__name__.lower()}: {field} is .*(less than or equal|finite)"
    ) as caught:
        cls.of({**good, field: value})
    assert len(str(caught.value)) < 250


def test_all_devices_of_a_cluster_are_bounded_too() -> None:
    values = presets.cluster("hgx-h200").to_dict()
    with pytest.raises(Mistake, match="the nearest that works: nodes 1,000,000"):
        Cluster.of({**values, "nodes": MOST_DEVICES, "devices_per_node": 10})


def test_a_ramp_up_of_a_million_sizes_is_refused_and_the_nearest_works() -> None:
    ramp = {"start": 1, "increment": 1, "samples": 10**15}
    with pytest.raises(Mistake, match=r"1,000,001 batch sizes.* an increment of 101 or more"):
        Batch.of({"size": 1_000_001, "ramp": ramp})
    assert len(Batch.of({"size": 101 * 9999 + 1, "ramp": {**ramp, "increment": 101}}).sizes()) == 10_000


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 12), st.integers(1, 5000), st.integers(1, 200))
def test_samples_of_a_ramp_up_are_those_of_its_steps(
    start: int, increment: int, count: int, samples: int, steps: int
) -> None:
    """Against Megatron's rule, step by step."""
    ramp = {"start": start, "increment": increment, "samples": samples}
    batch = Batch.of({"size": start + count * increment, "ramp": ramp})
    consumed = 0
    for _ in range(steps):
        consumed += batch.size_after(consumed)
    assert load_job("gpt-1b3-h200").model_copy(update={"batch": batch, "steps": steps}).samples == consumed


def test_a_ramp_up_of_years_is_counted_at_once() -> None:
    """One sample a step for the first 10^14 samples."""
    batch = Batch.of({"size": 11, "ramp": {"start": 1, "increment": 1, "samples": 10**15}})
    job = load_job("gpt-1b3-h200").model_copy(update={"batch": batch, "steps": 10**9})
    assert job.samples == 10**9


@pytest.mark.parametrize("name", ["a" * 300, "é" * 150, "a\nb", "a\0b", "a\x1bb", "\ud800", "", ".x", "a/b"])
def test_the_name_of_a_sweep_can_name_a_folder(name: str) -> None:
    base = load_job("gpt-1b3-h200").model_dump()
    with pytest.raises(Mistake, match=r"the name .*(folder|bytes)"):
        Sweep.of({"name": name, "base": base})


def test_the_longest_name_of_a_sweep_makes_a_folder(tmp_path: Path) -> None:
    made = Sweep.of({"name": "é" * 100, "base": load_job("gpt-1b3-h200").model_dump()})
    folder = tmp_path / f"{made.name}-123456"
    folder.mkdir()
    assert folder.is_dir()


def test_a_trainer_offers_something() -> None:
    with pytest.raises(ValidationError):
        TrainerProfile.model_validate({**presets.trainer("trimaran").model_dump(), "recompute": ()})
