"""On a GPU: the same losses as on a CPU, compiled or eager, and a training loop without host-device synchronization."""

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trimaran.data.source import source_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer, local_tensors
from trimaran.engine.checkpoint.folder import TrainState
from trimaran.engine.checkpoint.sharded_tensors import dequantized
from trimaran.engine.kernels.fp8 import transpose_copy
from trimaran.engine.kernels.fused_adamw import FusedAdamW
from trimaran.engine.loop.batches import batch
from trimaran.engine.loop.train import StopSignal, train_loop
from trimaran.engine.metrics.reporter import MetricsReporter, PendingStep
from trimaran.engine.parallel.world import World
from trimaran.engine.parallel.zero import MasterWeight
from trimaran.engine.trainer import Requests, Trainer
from trimaran.processes.heartbeat import Heartbeat
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings
from trimaran.spec.tensors import NamedTensor

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's compiler issues many
]
STEPS = 8
LLAMA = ("model.position=rotary", "model.norm=rmsnorm", "model.mlp=swiglu", "model.kv_heads=2")


def tiny(device: str, *settings: str) -> Trainer:
    torch.compiler.reset()
    gc.collect()  # the previous trainer: freed later, it would disturb a memory measurement
    job = apply_settings(load_job("tiny"), list(settings))
    return Trainer(job, World(job.layout, torch.device(device)))


def losses_of(trainer: Trainer, steps: range) -> list[float]:
    job, size, source = trainer.job, trainer.job.batch.size, source_of(trainer.job)
    parts = [batch(job, source, i * size, size, 0, trainer.world.device) for i in steps]
    return [float(trainer.step(part).loss) for part in parts]


def losses(device: str, *settings: str, steps: int = STEPS) -> list[float]:
    return losses_of(tiny(device, *settings), range(steps))


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optimizer=fused-adam",),
        ("layout.recompute=selective",),
        ("layout.recompute=full", "optimizer=fused-adam"),
        ("model.position=alibi",),
        LLAMA,
    ],
    ids=str,
)
def test_losses_in_fp32_are_those_of_a_cpu(settings: tuple[str, ...]) -> None:
    assert losses("cuda", *settings) == pytest.approx(losses("cpu", *settings), rel=1e-4)


@pytest.mark.parametrize("size", [4, 16])
def test_losses_in_bf16_are_near_those_of_a_cpu_in_fp32(size: int) -> None:
    """With one micro batch, whose gradients stay in bf16, and with four, whose gradients accumulate in fp32."""
    settings = ("layout.micro_batch=4", f"batch.size={size}", "optimizer=fused-adam")
    assert losses("cuda", "precision=bf16", *settings) == pytest.approx(losses("cpu", *settings), rel=3e-3)


def test_losses_in_fp8_are_near_those_of_a_cpu() -> None:
    """Which rounds to the same fp8 values; sums differ in bf16's last bits."""
    settings = ("precision=fp8", "optimizer=fused-adam", "batch.size=2", "layout.micro_batch=2")
    few = 2  # steps, of few samples: a CPU emulates fp8 GEMMs, 3 s for each sample
    assert losses("cuda", *settings, steps=few) == pytest.approx(losses("cpu", *settings, steps=few), rel=3e-3)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**24], ids=["fitting", "overflowing"])
def test_losses_in_fp16_are_near_those_of_a_cpu(scale: float) -> None:
    """Also where the first steps overflow, halve the loss scale and are skipped."""
    settings = ("precision=fp16", f"recipe.loss_scale.initial={scale}", "recipe.loss_scale.hysteresis=1")
    found = losses("cuda", *settings, "optimizer=fused-adam")
    assert found == pytest.approx(losses("cpu", *settings), rel=3e-3)


@pytest.mark.parametrize("family", [(), LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_compiling_does_not_change_the_losses(precision: str, family: tuple[str, ...]) -> None:
    compiled = losses("cuda", f"precision={precision}", *family)
    with torch.compiler.set_stance("force_eager"):
        eager = losses("cuda", f"precision={precision}", *family)
    assert compiled == pytest.approx(eager, rel={"fp32": 1e-5, "bf16": 1e-3, "fp8": 3e-3}[precision])


def state(trainer: Trainer) -> dict[str, Tensor]:
    """Weights and moments, in fp32 on the host."""
    return {name: dequantized(tensor).cpu().clone() for name, tensor in local_tensors(trainer)[0].items()}


@pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("optimizer", ["adam", "fused-adam", "adam-8bit"])
def test_a_run_resumes_as_if_never_stopped(optimizer: str, background: bool, tmp_path: Path) -> None:
    """On a GPU and on a CPU: from the same bits, except 8-bit moments, which are quantized again, to losses that agree
    as in bf16. Saving allocates nothing on a GPU that may be full, resuming little."""
    if optimizer == "adam-8bit":
        pytest.importorskip("torchao")
    settings = [f"optimizer={optimizer}", "precision=bf16", f"saving.folder={tmp_path}"]
    settings += [f"saving.asynchronous={background}", "batch.size=4", "model.layers=16"]
    begun, position = tiny("cuda", *settings), TrainState(3, 12)
    losses_of(begun, range(3))
    checkpoints, saved = Checkpointer(begun), state(begun)
    few_bytes = 0.4 * sum(master.value.nbytes for master in begun.weights.masters)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    checkpoints.save(position)
    assert torch.cuda.max_memory_allocated() == before
    expected = losses_of(begun, range(3, 6))
    checkpoints.finish()

    resumed, on_cpu = tiny("cuda", *settings), tiny("cpu", *settings)
    torch.cuda.reset_peak_memory_stats()
    assert Checkpointer(resumed).resume() == Checkpointer(on_cpu).resume() == position
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() < few_bytes
    for trainer in (resumed, on_cpu):
        exact = {name for name in saved if optimizer != "adam-8bit" or name.startswith("weights/")}
        assert all(torch.equal(tensor, saved[name]) for name, tensor in state(trainer).items() if name in exact)
        assert {int(of_one["step"]) for of_one in trainer.optimizer.state.values()} == {3}
        assert losses_of(trainer, range(3, 6)) == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize("shape", [(256, 128), (300, 70), (1, 129), (129, 1), (4096, 1000)], ids=str)
def test_transpose_copy_is_that_of_a_cpu(shape: tuple[int, int]) -> None:
    matrix = torch.randint(0, 256, shape, dtype=torch.uint8)
    found = transpose_copy(matrix.cuda())
    assert found.is_contiguous()
    assert torch.equal(found.cpu(), matrix.t())


@pytest.mark.parametrize("shapes", [((300, 70), (1000,), (64, 128)), ((300, 80), (1024,), (64, 128))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_adamw_is_adamw_on_clipped_gradients(dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Against PyTorch's own in float64. The copy in the compute precision is the value, rounded. Sizes that are aligned
    for vector loads, and sizes that are not."""
    torch.manual_seed(0)
    masters = [master_weight(torch.randn(shape, device="cuda"), dtype) for shape in shapes]
    exact = [nn.Parameter(one.value.detach().double().cpu()) for one in masters]
    options = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8}
    values = [one.value for one in masters]
    ours = FusedAdamW(
        [{"params": values[:2], "weight_decay": 0.1}, {"params": values[2:], "weight_decay": 0.0}], masters, **options
    )
    groups = [{"params": exact[:2], "weight_decay": 0.1}, {"params": exact[2:], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, **options)
    ours.grad_factor = torch.tensor(0.25, device="cuda")
    for _ in range(5):
        for one, right in zip(masters, exact, strict=True):
            one.parameter.grad = torch.randn_like(one.parameter)
            right.grad = one.parameter.grad.double().cpu() * 0.25
        ours.step()
        theirs.step()
    for one, right in zip(masters, exact, strict=True):
        torch.testing.assert_close(one.value.cpu().double(), right, rtol=1e-5, atol=1e-6)
        assert torch.equal(one.parameter, one.value.to(dtype))


def master_weight(value: Tensor, dtype: torch.dtype) -> MasterWeight:
    master = nn.Parameter(value)
    parameter = master if dtype == torch.float32 else nn.Parameter(value.to(dtype))
    return MasterWeight(
        NamedTensor("a.weight", tuple(value.shape), None), master, parameter, tied_copy=False, sharded=False
    )


class StrictReporter(MetricsReporter):
    """After the third step, when everything is compiled and allocated, PyTorch refuses to wait for the device."""

    def report(self, step: PendingStep) -> Requests:
        requests = super().report(step)
        if step.iteration == 3:
            torch.cuda.set_sync_debug_mode("error")
        return requests


@pytest.mark.parametrize("settings", [("optimizer=fused-adam", "precision=bf16"), ("optimizer=adam",)], ids=str)
def test_the_loop_never_synchronizes_with_the_device(settings: tuple[str, ...]) -> None:
    torch.compiler.reset()
    job = apply_settings(load_job("tiny"), ["steps=8", *settings])
    trainer = Trainer(job, World(job.layout, torch.device("cuda")))
    reporter = StrictReporter(job, trainer.world, TrainState())
    try:
        train_loop(trainer, Checkpointer(trainer), StopSignal(), reporter, Heartbeat(None, 0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reporter.state.iteration == 8
