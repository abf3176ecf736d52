"""`layout.dp: auto` is the largest dp that the devices allow, in a file and as a setting."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings, load_job_with

FILE = """
model: {name: g, layers: 4, hidden: 128, heads: 8, vocab: 512, seq_len: 128, position: learned, tied_embeddings: true}
cluster: {preset: hgx-h200, nodes: 3}
layout: {dp: auto, tp: 8, micro_batch: 2}
batch: {size: 24}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    return path


def devices(job: Job) -> tuple[int, int, int]:
    return job.layout.dp, job.cluster.nodes, job.cluster.devices_per_node


def test_a_file_with_auto_uses_every_node(file: Path) -> None:
    assert devices(load_job(file)) == (3, 3, 8)


@pytest.mark.parametrize(
    ("settings", "there", "expected"),
    [
        ([], 24, (3, 3, 8)),
        ([], 16, (2, 2, 8)),  # a node less
        (["batch.size=16"], 24, (2, 2, 8)),  # 3 x 2 does not divide 16
        (["layout.tp=4"], 24, (6, 3, 8)),
        (["layout.tp=1"], 24, (12, 2, 6)),  # 12 x 2 samples are all: half of the devices, evenly on two nodes
        (["batch.ramp={start: 8, increment: 8, samples: 100}"], 24, (2, 2, 8)),  # 3 x 2 does not divide 8
        (["cluster.nodes=2"], None, (2, 2, 8)),
        (["layout.dp=3"], 8, (3, 3, 8)),  # stated, so it stays
    ],
)
def test_settings_are_applied_before_auto_is_resolved(
    file: Path, settings: list[str], there: int | None, expected: tuple[int, int, int]
) -> None:
    assert devices(load_job_with(file, settings, there)) == expected


def test_a_replica_that_does_not_fit_is_a_mistake_about_one_replica(file: Path) -> None:
    with pytest.raises(Mistake, match="dp 1 x tp 8 x pp 4 = 32 devices, but 3 nodes of 8 have 24"):
        load_job_with(file, ["layout.pp=4"])


def test_another_wrong_field_is_what_the_mistake_names(file: Path) -> None:
    with pytest.raises(Mistake, match=r"layout\.tp"):
        load_job_with(file, ["layout.tp=many"])


@pytest.mark.usefixtures("on_two_cores")
def test_a_cpu_machine_runs_as_many_processes_as_it_has_cores() -> None:
    tiny = load_job("tiny")
    auto = apply_settings(tiny.replace(cluster={**tiny.cluster.model_dump(), "cores": 2}), ["layout.dp=auto"])
    assert devices(auto) == (2, 1, 2)


@given(nodes=st.integers(1, 40), tp=st.sampled_from([1, 2, 4, 8]), batch=st.integers(1, 96))
def test_no_larger_dp_would_be_a_valid_job(nodes: int, tp: int, batch: int) -> None:
    base = load_job("gpt-1b3-h200")
    given = [f"cluster={{preset: hgx-h200, nodes: {nodes}}}", f"layout.tp={tp}", f"batch.size={batch}"]
    auto = apply_settings(base, [*given, "layout.dp=auto", "layout.micro_batch=1"])
    assert batch % auto.layout.dp == 0
    assert auto.layout.devices == auto.cluster.devices <= 8 * nodes
    larger = [dp for dp in range(auto.layout.dp + 1, 8 * nodes // tp + 1) if batch % dp == 0]
    for dp in larger:  # each can only be refused because its devices cannot be spread evenly over the fewest nodes
        assert (dp * tp) % -(-dp * tp // 8)
