"""The cost model of our own trainer on a GPU, against what a real H200 did (tests/fixtures/h200.json)."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.planner.explain import Explanation, explain
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings

MEASURED = json.loads((Path(__file__).parent.parent / "fixtures" / "h200.json").read_text())
GIB = 2**30


def rows(*tables: str) -> list[Any]:
    found = [row for table in tables for row in MEASURED[table]["rows"]]
    return [pytest.param(row, id=" ".join(settings(row))) for row in found]


def settings(row: dict[str, Any]) -> list[str]:
    return [f"{field}={value}" for field, value in row["change"].items()]


def explanation(row: dict[str, Any]) -> Explanation:
    return explain(apply_settings(load_job("gpt-1b3-h200"), settings(row)))


@pytest.mark.parametrize("row", rows("memory", "pages", "packed", "forecast"))
def test_allocated_memory_is_known_to_three_thousandths(row: dict[str, Any]) -> None:
    parts = explanation(row).memory_bytes()["first"]
    tensors = parts["total"] - parts["context"] - parts["slack"]
    assert tensors / GIB == pytest.approx(row["allocated"], rel=0.003)


@pytest.mark.parametrize("row", rows("memory", "pages", "packed", "swept", "largest"))
def test_reserved_memory_is_known_to_five_hundredths(row: dict[str, Any]) -> None:
    parts = explanation(row).memory_bytes()["first"]
    assert (parts["total"] - parts["context"]) / GIB == pytest.approx(row["reserved"], rel=0.05)


def test_a_device_that_is_alone_has_no_communicators() -> None:
    """A one-rank NCCL group takes 0.47 GiB more."""
    two = {"change": {"cluster.devices_per_node": 2, "layout.dp": 2, "batch.size": 32}}
    contexts = [explanation(row).memory_bytes()["first"]["context"] / GIB for row in ({"change": {}}, two)]
    assert contexts[1] - contexts[0] == pytest.approx(0.47)


@pytest.mark.parametrize("row", rows("trains"))
def test_a_micro_batch_that_trains_is_known_to_fit(row: dict[str, Any]) -> None:
    assert explanation(row).fits


@pytest.mark.parametrize("row", rows("ran_out"))
def test_a_micro_batch_that_ran_out_of_memory_is_known_not_to_fit(row: dict[str, Any]) -> None:
    assert not explanation(row).fits


@pytest.mark.parametrize("row", rows("room"))
def test_memory_needed_lies_between_what_ran_out_and_what_trained(row: dict[str, Any]) -> None:
    parts = explanation(row).memory_bytes()["first"]
    assert row["ran_out"] < parts["total"] - parts["slack"] <= row["trained"]


@pytest.mark.parametrize("row", rows("swept", "unfitted"))
def test_the_seconds_of_a_step_are_known_to_five_hundredths(row: dict[str, Any]) -> None:
    """Those unfitted are of micro batches, recompute, a sequence, widths, layers and a precision that the constants
    were not fitted on."""
    assert explanation(row).seconds == pytest.approx(row["seconds"], rel=0.05)


@pytest.mark.parametrize("row", rows("largest"))
def test_the_seconds_of_a_step_hold_its_optimizer(row: dict[str, Any]) -> None:
    """Of these steps of 2048 tokens the optimizer takes a fifth to a half."""
    assert explanation(row).seconds == pytest.approx(2048 / row["tokens_per_second"], rel=0.05)
