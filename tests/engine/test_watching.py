"""What a run reports: time left, spikes, TensorBoard; and what it writes when the loss is not finite."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.engine.commands import finished
from trimaran.data.source import source_of
from trimaran.engine.metrics.spikes import NEEDED, SpikeDetector
from trimaran.spec.files import load_job


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    files = ("--metrics", str(folder / "metrics.jsonl"), "--tensorboard", str(folder / "board"))
    ramp = ("--set", "batch.ramp={start: 8, increment: 8, samples: 32}")
    code, _, err = finished("tiny", "--steps", "8", "--set", "validation.every=4", *ramp, *files)
    assert (code, err) == (0, "")
    return folder


def records(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_time_left_is_that_of_the_samples_left_at_the_present_speed(run: Path) -> None:
    steps = [record for record in records(run / "metrics.jsonl") if "loss" in record]
    total = steps[-1]["consumed_samples"]
    assert steps[-1]["seconds_left"] == 0
    for number, record in enumerate(steps[1:], start=2):
        since = steps[1:number]  # all but the first
        speed = sum(s["batch"] for s in since) / sum(s["seconds"] for s in since)  # type: ignore[misc]
        left = (total - record["consumed_samples"]) / speed  # type: ignore[operator]
        assert record["seconds_left"] == pytest.approx(left)


def test_tensorboard_reads_the_numbers_of_the_metrics(run: Path) -> None:
    board = EventAccumulator(str(run / "board")).Reload()
    steps = [record for record in records(run / "metrics.jsonl") if "loss" in record]
    for name, field in {"lm-loss-training/lm loss": "loss", "batch-size/batch-size": "batch"}.items():
        seen = [(event.step, event.value) for event in board.Scalars(name)]
        assert seen == [(record["iteration"], pytest.approx(record[field])) for record in steps]
    validations = [record for record in records(run / "metrics.jsonl") if "validation_loss" in record]
    assert [(event.step, event.value) for event in board.Scalars("lm-loss-validation/lm loss")] == [
        (record["iteration"], pytest.approx(record["validation_loss"])) for record in validations
    ]
    assert len(validations) == 2


@given(
    start=st.floats(2.0, 12.0),
    noise=st.floats(0.001, 0.05),
    at=st.integers(NEEDED + 1, 199),
    seed=st.integers(0, 2**32 - 1),
)
@example(start=2.0, noise=0.046875, at=199, seed=11947)  # where the fall itself once hid the jump
def test_a_jump_in_a_noisy_falling_loss_is_noted_and_nothing_else(
    start: float, noise: float, at: int, seed: int
) -> None:
    falling = start * np.linspace(1.0, 0.5, 200)
    losses = falling * (1 + noise * np.random.default_rng(seed).uniform(-1, 1, 200))
    losses[at] *= 2
    spikes = SpikeDetector()
    assert [i for i, loss in enumerate(losses) if spikes.is_spike(float(loss))] == [at]


@pytest.mark.parametrize("layout", [(), ("layout.tp=2", "layout.pp=2", "layout.dp=2", "layout.zero=1")])
def test_a_loss_of_nan_stops_the_run_and_leaves_what_is_needed_to_do_it_again(
    tmp_path: Path, layout: tuple[str, ...]
) -> None:
    """After one step at a rate of 1e25 the squares in the first norm overflow fp32."""
    folder = tmp_path / "saved"
    changes = ("recipe.learning_rate=1e25", "precision=fp32", f"saving.folder={folder}", *layout)
    settings = [word for change in changes for word in ("--set", change)]
    metrics = ("--metrics", str(tmp_path / "metrics.jsonl"))
    code, _, err = finished("tiny", "--steps", "5", "--stop-on-nan", *metrics, *settings)
    assert code == 6
    assert err.count("\n") == 1
    assert str(folder / "not-finite-00000002") in err

    assert [record["loss"] for record in records(tmp_path / "metrics.jsonl")][1:] == [None]
    assert [path.name for path in folder.glob("step-*")] == ["step-00000001"]
    job = load_job("tiny")
    left = [json.loads(file.read_text()) for file in sorted((folder / "not-finite-00000002").glob("*.json"))]
    assert len(left) == (8 if layout else 1)
    assert left[0]["first_not_finite"] == "layers.0.attention_norm"
    assert all(tensor["weight"]["not_finite"] == 0 for rank in left for tensor in rank["tensors"].values())
    assert all(tensor["gradient"]["not_finite"] > 0 for tensor in left[0]["tensors"].values())
    seen = np.load(folder / "not-finite-00000002" / "rank-00000-batch.npz")["tokens"]
    expected = [source_of(job).sample(number)[0][:-1] for number in range(16, 16 + len(seen))]
    np.testing.assert_array_equal(seen, expected)


def test_without_the_option_such_steps_are_counted_and_training_continues(tmp_path: Path) -> None:
    changes = ("--set", "recipe.learning_rate=1e25", "--set", "precision=fp32")
    code, _, _ = finished("tiny", "--steps", "4", *changes, "--metrics", str(tmp_path / "metrics.jsonl"))
    assert code == 6  # but it does not end as if all were well
    assert [record["nan"] for record in records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
