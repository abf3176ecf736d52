"""Compiled layers compute the same as eager ones, in every variant of the model. Here PyTorch traces and differentiates
them, and runs the graphs in eager mode; the kernels of a GPU are tested in tests/cuda."""

import gc
import os
import stat
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.stages import random_tokens, whole_stage
from tests.engine.trainers import losses_of, run_steps, trainer_of
from trimaran.engine.kernels.compile import compile_layers, use_private_cache
from trimaran.processes.compile_cache import VARIABLE as CACHE
from trimaran.spec import Job, Model
from trimaran.spec.trainer import Recompute

MODELS = {"gpt": GPT, "bloom": BLOOM, "llama": LLAMA}


def tracing_warnings(test: Any) -> Any:
    """PyTorch's own, while it traces."""
    for message in ("ignore:.*should not be instantiated:DeprecationWarning", "ignore:The .grad attribute:UserWarning"):
        test = pytest.mark.filterwarnings(message)(test)
    return test


@tracing_warnings
@pytest.mark.parametrize(
    ("name", "recompute"), [("gpt", "none"), ("bloom", "selective"), ("llama", "full"), ("llama", "selective")]
)
def test_loss_and_gradients_are_those_of_eager_layers(name: str, recompute: Recompute) -> None:
    model = Model(**MODELS[name] | {"layers": 2})
    eager, compiled = (whole_stage(model) for _ in range(2))
    compiled.recompute = recompute
    for block in compiled.layers.values():
        block.attention.recompute = recompute
    torch.compiler.reset()
    compile_layers(compiled, backend="aot_eager")
    tokens = random_tokens(model, rows=2, seed=1)
    batch: dict[str, Any] = {"targets": random_tokens(model, rows=2, seed=2)}
    batch["token_weights"] = torch.full(tokens.shape, 1 / tokens.numel())
    for more in ({}, {"documents": (tokens > 100).cumsum(1)}, {"prefix": (tokens * 0 + torch.arange(16) < 5).long()}):
        losses = [stage(tokens, tokens, **batch, **more) for stage in (eager, compiled)]
        for loss in losses:
            loss.backward()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
        for value, right in zip(compiled.parameters(), eager.parameters(), strict=True):
            # Relative to the largest element: a sum that nearly cancels has the rounding error of its terms.
            torch.testing.assert_close(value.grad, right.grad, rtol=0, atol=2e-6 * float(right.grad.abs().max()))


@pytest.mark.parametrize(
    "layout", [{"dp": 2, "zero": 3}, {"dp": 2, "zero": 1, "recompute": "full"}, {"pp": 2}], ids=str
)
def test_layers_of_sharded_and_pipelined_models_can_be_compiled(pool: Pool, layout: dict[str, Any]) -> None:
    job = job_of(GPT, layout)
    for eager, compiled in pool.run(2, eager_and_compiled, job):
        assert compiled == pytest.approx(eager, rel=1e-5)


def eager_and_compiled(rank: int, job: Job) -> tuple[list[float], list[float]]:
    """Losses of the same job."""
    eager, compiled = trainer_of(rank, job), trainer_of(rank, job)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in compiled.weights.modules:
            compile_layers(module, backend="aot_eager")
        return losses_of(eager, range(3)), losses_of(compiled, range(3))


@tracing_warnings
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trainer_that_is_deleted_frees_its_weights(precision: str) -> None:
    """Compiled and after a step, so that everything that could hold a reference exists."""
    job = job_of(GPT, {"micro_batch": 4}, precision=precision)
    trainer = trainer_of(0, job)
    compile_layers(trainer.weights.modules[0], backend="aot_eager")
    run_steps(trainer, [0])
    references = [
        weakref.ref(tensor) for master in trainer.weights.masters for tensor in (master.value, master.parameter)
    ]
    del trainer
    torch.compiler.reset()
    gc.collect()
    assert not [tensor for tensor in references if tensor() is not None]


@tracing_warnings
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_step_leaves_no_tensor_to_the_garbage_collector(recompute: Recompute, compiled: bool) -> None:
    """Which runs seldom: what waits for it would be memory that nobody counted."""
    job = job_of(GPT, {"micro_batch": 4, "recompute": recompute}, precision="bf16")
    trainer = trainer_of(0, job)
    torch.compiler.reset()
    if compiled:
        compile_layers(trainer.weights.modules[0], backend="aot_eager")
    for _ in range(2):  # the first allocates optimizer states and compiles
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            run_steps(trainer, [0])
            gc.collect()
            left = [found for found in gc.garbage if issubclass(type(found), torch.Tensor)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left


def test_compiled_code_comes_from_a_folder_that_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chosen = []
    for mode in (None, 0o777):
        monkeypatch.delenv(CACHE, raising=False)
        if mode:  # as if somebody had prepared it
            (tmp_path / "trimaran" / "compiled").chmod(mode)
        use_private_cache()
        chosen.append(Path(os.environ[CACHE]))
    assert chosen[0] == tmp_path / "trimaran" / "compiled"
    assert chosen[1] != chosen[0]
    assert stat.S_IMODE(chosen[1].stat().st_mode) == 0o700
    chosen[1].rmdir()
    monkeypatch.setenv(CACHE, "/of/the/user")
    use_private_cache()
    assert os.environ[CACHE] == "/of/the/user"
