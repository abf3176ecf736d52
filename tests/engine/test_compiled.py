"""Compiled layers compute what they did before, in every variant of the model. What a GPU's kernels add is in
tests/cuda; here PyTorch traces and differentiates, and runs the result as it is."""

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch

from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.stages import random_tokens, whole_stage
from trimaran.data.source import Synthetic
from trimaran.engine.kernels.compile import compile_layers
from trimaran.engine.loop.batches import batch
from trimaran.engine.parallel.world import World, build_world
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job, Model
from trimaran.spec.trainer import Recompute

MODELS = {"gpt": GPT, "bloom": BLOOM, "llama": LLAMA}


# PyTorch's own, while it traces:
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("name", "recompute"), [("gpt", "none"), ("bloom", "selective"), ("llama", "full"), ("llama", "selective")]
)
def test_loss_and_gradients_are_those_of_layers_that_are_not_compiled(name: str, recompute: Recompute) -> None:
    model = Model(**MODELS[name] | {"layers": 2})
    plain, compiled = (whole_stage(model) for _ in range(2))
    compiled.recompute = recompute
    for block in compiled.layers.values():
        block.attention.recompute = recompute
    torch.compiler.reset()
    compile_layers(compiled, backend="aot_eager")
    tokens = random_tokens(model, rows=2, seed=1)
    batch: dict[str, Any] = {"targets": random_tokens(model, rows=2, seed=2)}
    batch["token_weights"] = torch.full(tokens.shape, 1 / tokens.numel())
    for more in ({}, {"documents": (tokens > 100).cumsum(1)}, {"prefix": (tokens * 0 + torch.arange(16) < 5).long()}):
        losses = [stage(tokens, tokens, **batch, **more) for stage in (plain, compiled)]
        for loss in losses:
            loss.backward()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
        for value, right in zip(compiled.parameters(), plain.parameters(), strict=True):
            # Of the largest number: a sum that nearly cancels has the rounding of its terms, as each CPU orders them.
            torch.testing.assert_close(value.grad, right.grad, rtol=0, atol=2e-6 * float(right.grad.abs().max()))


@pytest.mark.parametrize(
    "layout", [{"dp": 2, "zero": 3}, {"dp": 2, "zero": 1, "recompute": "full"}, {"pp": 2}], ids=str
)
def test_layers_of_sharded_and_pipelined_models_can_be_compiled(pool: Pool, layout: dict[str, Any]) -> None:
    job = job_of(GPT, layout)
    for plain, compiled in pool.run(2, losses_of, job):
        assert compiled == pytest.approx(plain, rel=1e-5)


def losses_of(rank: int, job: Job) -> tuple[list[float], list[float]]:
    """Of a trainer as it is on a CPU, and of one with compiled layers."""
    cpu = torch.device("cpu")
    world = build_world(job.layout, job.model.tied_embeddings, cpu, rank)
    source = Synthetic(job.model.vocab, job.model.seq_len, job.seed)
    trainers = Trainer(job, world), Trainer(job, world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in trainers[1].weights.modules:
            compile_layers(module, backend="aot_eager")
        found: list[list[float]] = []
        for trainer in trainers:
            parts = [batch(job, source, i * 8, 8, world.dp_rank, cpu) for i in range(3)]
            found.append([float(trainer.step(part).loss) for part in parts])
    return found[0], found[1]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trainer_that_is_dropped_gives_its_weights_back(precision: str) -> None:
    """Compiled and after a step, so that everything that could hold on to them has been there."""
    job = job_of(GPT, {"micro_batch": 4}, precision=precision)
    device = torch.device("cpu")
    trainer = Trainer(job, World(job.layout, device))
    compile_layers(trainer.weights.modules[0], backend="aot_eager")
    trainer.step(batch(job, Synthetic(job.model.vocab, job.model.seq_len, job.seed), 0, 8, 0, device))
    held = [weakref.ref(tensor) for master in trainer.weights.masters for tensor in (master.value, master.parameter)]
    del trainer
    torch.compiler.reset()
    gc.collect()
    assert not [tensor for tensor in held if tensor() is not None]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["as it is", "compiled"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_step_leaves_no_tensor_to_the_garbage_collector(recompute: Recompute, compiled: bool) -> None:
    """Which comes seldom: what waits for it would be memory that nobody counted."""
    job = job_of(GPT, {"micro_batch": 4, "recompute": recompute}, precision="bf16")
    device, source = torch.device("cpu"), Synthetic(job.model.vocab, job.model.seq_len, job.seed)
    trainer = Trainer(job, World(job.layout, device))
    torch.compiler.reset()
    if compiled:
        compile_layers(trainer.weights.modules[0], backend="aot_eager")
    for _ in range(2):  # the first makes states and compiles
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            trainer.step(batch(job, source, 0, 8, 0, device))
            gc.collect()
            left = [found for found in gc.garbage if issubclass(type(found), torch.Tensor)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left
