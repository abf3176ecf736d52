"""Checkpoints: a run resumes under any other layout as if never stopped, and a killed one loses no complete save."""

import json
import shlex
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.commands import ONE_THREAD, TRIMARAN, finished, losses, train, until_iteration
from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.trainers import CPU, trainer_of
from tests.processes import LIMIT_SECONDS, finish
from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.folder import TrainState, newest_checkpoint
from trimaran.engine.loop.batches import batch
from trimaran.engine.loop.evaluation import evaluate
from trimaran.engine.memory.tracker import Tracker
from trimaran.spec import Job, Mistake

STEPS, SAVED_AT = 4, 2
UNTIED = {"tied_embeddings": False}

Z3 = {"dp": 2, "zero": 3, "micro_batch": 2}
ALL = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2, "sequence_parallel": True}
# (model, the layout that saves, the layout that resumes)
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "one process to all three": (GPT, {}, ALL),
    "all three to one process": (GPT, ALL, {}),
    "all three to pp4": (GPT, ALL, {"pp": 4}),
    "tp2 to tp4": (GPT, {"tp": 2, "micro_batch": 8}, {"tp": 4, "micro_batch": 8}),
    "tp4 to dp2 zero3": (GPT, {"tp": 4, "micro_batch": 8}, Z3),
    "zero3 to zero1": (BLOOM, Z3, Z3 | {"zero": 1}),
    "zero1 to zero0": (BLOOM, Z3 | {"zero": 1}, {"dp": 2}),
    "dp2 to dp4": (BLOOM, Z3, {"dp": 4, "zero": 2}),
    "pp2 to virtual stages": (LLAMA, {"pp": 2}, {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"}),
    "virtual stages to pp4": (LLAMA, {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"}, {"pp": 4}),
    "untied, pp2 to tp2": (LLAMA | UNTIED, {"pp": 2}, {"tp": 2, "micro_batch": 4}),
    "another micro batch": (LLAMA | UNTIED, {"micro_batch": 8}, {"micro_batch": 1}),
}
RECIPE = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_samples": 16, "minimum_learning_rate": 1e-4}


def job(model: dict[str, Any], layout: dict[str, Any], folder: Path | None, **rest: Any) -> Job:
    saving = {"folder": str(folder) if folder else None}
    return job_of(model, layout, **{"saving": saving, "recipe": RECIPE, "steps": STEPS, **rest})


def trained(rank: int, job: Job, until: int) -> list[float]:
    """Resume from the newest checkpoint, train to this step and save there: the losses, and the validation loss."""
    trainer = trainer_of(rank, job)
    checkpoints = Checkpointer(trainer)
    position = checkpoints.resume()
    consumed, found, source = position.consumed, [], source_of(job)
    for iteration in range(position.iteration, until):
        parts = batch(job, source, consumed, job.batch.size, trainer.world.dp_rank, CPU)
        consumed += job.batch.size
        found.append(float(trainer.step(parts, job.recipe.rate_at(consumed, job.samples)).loss))
        checkpoints.save(TrainState(iteration + 1, consumed, 0, 0, trainer.scaler.state()))
    checkpoints.finish()
    return [*found, evaluate(trainer, source_of(job, "validation"))]


@pytest.fixture(scope="session")
def never_stopped(pool: Pool) -> Any:
    @cache
    def of_model(text: str, optimizer: str = "adam") -> list[float]:
        return pool.run(1, trained, job(json.loads(text), {}, None, optimizer=optimizer), STEPS)[0]

    return of_model


@pytest.mark.parametrize("pair", PAIRS)
def test_a_run_resumes_under_another_layout_as_if_never_stopped(
    pair: str, pool: Pool, never_stopped: Any, tmp_path: Path
) -> None:
    model, first, second = PAIRS[pair]
    saved, resumed = (job(model, layout, tmp_path) for layout in (first, second))
    begun = pool.run(saved.layout.devices, trained, saved, SAVED_AT)
    expected = never_stopped(json.dumps(model))
    for of_rank in begun:
        assert of_rank[:-1] == pytest.approx(expected[:SAVED_AT], rel=1e-5)
    for of_rank in pool.run(resumed.layout.devices, trained, resumed, STEPS):
        assert of_rank == pytest.approx(expected[SAVED_AT:], rel=1e-5)


@pytest.mark.parametrize("layout", [{}, {"dp": 2, "zero": 1}], ids=["one process", "dp2 zero1"])
def test_a_save_in_the_background_is_of_the_step_it_was_asked_for(
    layout: dict[str, Any], pool: Pool, never_stopped: Any, tmp_path: Path
) -> None:
    background = {"folder": str(tmp_path), "asynchronous": True, "keep": 10}
    asked = job(GPT, layout, None, saving=background)
    pool.run(asked.layout.devices, trained, asked, STEPS)
    for later in range(SAVED_AT + 1, STEPS + 1):
        shutil.rmtree(tmp_path / f"step-{later:08d}")
    again = pool.run(asked.layout.devices, trained, asked, STEPS)[0]
    assert again == pytest.approx(never_stopped(json.dumps(GPT))[SAVED_AT:], rel=1e-5)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize(
    ("layout", "off"), [({}, 1e-5), ({"tp": 2, "dp": 2, "zero": 1, "micro_batch": 2}, 3e-3)], ids=["same", "another"]
)
def test_8_bit_moments_are_resumed(
    layout: dict[str, Any], off: float, asynchronous: bool, pool: Pool, never_stopped: Any, tmp_path: Path
) -> None:
    """With the same sharding as if never stopped; otherwise their quantization blocks of 256 differ."""
    pytest.importorskip("torchao")
    model, saving = GPT | {"hidden": 64}, {"folder": str(tmp_path), "asynchronous": asynchronous}
    expected = never_stopped(json.dumps(model), "adam-8bit")
    pool.run(1, trained, job(model, {}, None, optimizer="adam-8bit", saving=saving), SAVED_AT)
    resumed = job(model, layout, None, optimizer="adam-8bit", saving=saving)
    for of_rank in pool.run(resumed.layout.devices, trained, resumed, STEPS):
        assert of_rank == pytest.approx(expected[SAVED_AT:], rel=off)


@pytest.mark.parametrize("optimizer", ["adam", "fused-adam", "adam-8bit"])
def test_resuming_needs_hardly_more_memory_than_training_holds(optimizer: str, tmp_path: Path) -> None:
    """A job that fills the device must be able to resume: not all gradients or unpacked moments at once."""
    if optimizer == "adam-8bit":
        pytest.importorskip("torchao")
    asked = job(GPT | {"hidden": 64, "layers": 24}, {}, tmp_path, optimizer=optimizer)
    trained(0, asked, 1)
    tracker = Tracker()
    with tracker:
        trainer = trainer_of(0, asked)
        assert Checkpointer(trainer).resume().iteration == 1
    weights = sum(master.value.nbytes for master in trainer.weights.masters)
    assert tracker.now >= weights
    assert tracker.peak - tracker.now < 0.2 * weights


def test_the_newest_are_kept(pool: Pool, tmp_path: Path) -> None:
    kept = job(GPT, {}, None, saving={"folder": str(tmp_path), "keep": 2})
    pool.run(1, trained, kept, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_a_half_written_checkpoint_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / ".step-00000003.partial").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000002"


def test_a_checkpoint_of_another_model_is_named_by_its_first_difference(pool: Pool, tmp_path: Path) -> None:
    pool.run(1, trained, job(GPT, {}, tmp_path), 1)
    other = job(GPT | {"hidden": 64}, {}, tmp_path)
    with pytest.raises(Mistake, match=r"is of another model: its hidden is 32, the job's 64;"):
        Checkpointer(trainer_of(0, other)).resume()


def test_a_run_killed_while_it_saves_resumes_from_a_complete_checkpoint(tmp_path: Path) -> None:
    """Saving after every step, killed with -9 twice: the losses are those of an undisturbed run."""
    saving = ("--set", f"saving.folder={tmp_path}", "--set", "saving.every=1", "--set", "layout.dp=2")
    for seen in (1, 3):
        process = train("tiny", "--steps", "100000", *saving)
        begun = newest_checkpoint(tmp_path)
        first = int(begun.name[5:]) if begun else 0
        until_iteration(process, first + seen)
        process.kill()
        process.communicate()
    code, out, err = finished("tiny", "--steps", "8", *saving)
    assert (code, err) == (0, "")
    _, alone, _ = finished("tiny", "--steps", "8")
    last = losses(out)
    assert [float(loss) for loss in last] == pytest.approx([float(loss) for loss in losses(alone)[-len(last) :]], 1e-5)


def test_sigterm_saves_and_the_run_resumes(tmp_path: Path) -> None:
    saving = ("--set", f"saving.folder={tmp_path}")
    process = train("tiny", "--steps", "100000", "--set", "layout.pp=2", *saving)
    until_iteration(process, 2)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process)
    assert process.returncode == 5
    path = newest_checkpoint(tmp_path)
    assert path is not None
    at = int(path.name[5:])
    assert err == f"trimaran: interrupted after iteration {at} of 100000, saved in {tmp_path}.\n"
    code, out, _ = finished("tiny", "--steps", str(at + 2), "--set", "layout.tp=2", *saving)
    assert code == 0
    assert f" iteration {at + 1:8d}/" in out
    assert f" iteration {at:8d}/" not in out


@pytest.mark.parametrize("pipe", ["|", "2>&1 |"])
def test_a_run_whose_reader_leaves_is_saved(pipe: str, tmp_path: Path) -> None:
    """As with `| head`, and with the `| tee` that a terminal's Ctrl-C ends together with the run."""
    run = shlex.join([*TRIMARAN, "train", "tiny", "--steps", "100000", "--set", f"saving.folder={tmp_path}"])
    shell = ["bash", "-c", f'{run} {pipe} grep -m 1 "iteration .* 3/"; exit ${{PIPESTATUS[0]}}']
    ended = subprocess.run(shell, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, env=ONE_THREAD)
    assert ended.returncode == 5
    path = newest_checkpoint(tmp_path)
    assert path is not None
    said = f"trimaran: interrupted after iteration {int(path.name[5:])} of 100000, saved in {tmp_path}.\n"
    assert ended.stderr == (said if pipe == "|" else "")
