"""precision fp8: each GEMM against float64 of the same fp8 values, the rounding against its definition, losses against
bf16's, and every layout against one process."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.commands import finished
from tests.engine.jobs import GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.stages import random_tokens, random_weights
from tests.engine.trainers import CPU, losses_of, trainer_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.folder import TrainState
from trimaran.engine.kernels.compile import compile_layers
from trimaran.engine.kernels.fp8 import E4M3, E5M2, Fp8Matmul, check_fp8_support, quantize, scale_for
from trimaran.engine.model.linear import ColumnParallelLinear
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.pipeline import SUPPORTS_ZERO_BUBBLE
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.ledger.recognise import read_file
from trimaran.spec import Job, Mistake, Model

WIDE = GPT | {"hidden": 64}
GATED = LLAMA | {"hidden": 64, "ffn_hidden": 64}
SIGNIFICANT = {E4M3: 4, E5M2: 3}  # bits of a normal number, the leading one included


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    return values.to(torch.bfloat16)


def rounded(x: Tensor, kind: torch.dtype) -> Tensor:
    """By the definition, in float64: to so many significant bits, ties to even, and to multiples of the smallest
    subnormal below; scaled by the largest power of two that keeps the tensor's largest element representable."""
    wide, limits = x.double(), torch.finfo(kind)
    scale = 2.0 ** torch.floor(torch.log2(limits.max / wide.abs().max()))
    power = torch.log2((wide * scale).abs()).floor().clamp(min=torch.log2(torch.tensor(limits.smallest_normal)))
    step = 2.0 ** (power - SIGNIFICANT[kind] + 1)
    return torch.round(wide * scale / step) * step / scale


@pytest.mark.parametrize("scale", [1.0, 1e-6, 3e4])
def test_each_gemm_is_that_of_the_rounded_values(scale: float) -> None:
    """To the rounding of bf16, in which the results come."""
    x, weight = random(48, 32, seed=1, scale=scale), random(64, 32, seed=2, scale=0.02)
    grad = random(48, 64, seed=3, scale=1e-4)
    x.requires_grad_()
    weight.requires_grad_()
    y = Fp8Matmul.apply(x, weight)
    y.backward(grad)
    x8, weight8, grad8 = rounded(x.detach(), E4M3), rounded(weight.detach(), E4M3), rounded(grad, E5M2)
    for found, right in ((y, x8 @ weight8.t()), (x.grad, grad8 @ weight8), (weight.grad, grad8.t() @ x8)):
        assert found is not None
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), right, rtol=2**-8, atol=2e-6 * float(right.abs().max()))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**30), st.floats(-30, 30), st.sampled_from([E4M3, E5M2]), st.integers(1, 15))
def test_rounding_does_not_depend_on_how_a_tensor_is_sharded(
    seed: int, power: float, kind: torch.dtype, cut: int
) -> None:
    """Above the smallest normal number of the whole tensor; and nothing ever overflows the format."""
    x = random(16, 8, seed=seed, scale=2.0**power)
    x[seed % 16] *= 100  # a row that only some shards have
    whole, part = (quantize(some, kind, scale_for(some, kind)) for some in (x, x[:cut]))
    values, again = whole.data.double() * whole.scale, part.data.double() * part.scale
    normal = values[:cut].abs() > torch.finfo(kind).smallest_normal * whole.scale
    assert torch.equal(values[:cut][normal], again[normal])
    assert torch.finfo(kind).max / 2 <= whole.data.double().abs().max() <= torch.finfo(kind).max
    torch.testing.assert_close(values, rounded(x, kind), rtol=0, atol=0)


def test_a_tensor_of_zeros_gives_zeros() -> None:
    for x, grad in ((torch.zeros(16, 32), torch.ones(16, 16)), (torch.ones(16, 32), torch.zeros(16, 16))):
        x, weight = x.bfloat16().requires_grad_(), random(16, 32).requires_grad_()
        y = Fp8Matmul.apply(x, weight)
        y.backward(grad.bfloat16())
        assert x.grad is not None
        assert weight.grad is not None
        assert all(part.isfinite().all() for part in (y, x.grad, weight.grad))
        assert not (y.any() and weight.grad.any())


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_inf_and_nan_are_not_hidden(bad: float) -> None:
    x = random(16, 32)
    x[3, 4] = bad
    assert not Fp8Matmul.apply(x, random(16, 32, seed=1)).isfinite().all()


def test_the_input_is_saved_in_fp8_and_the_weight_as_it_is() -> None:
    layer = ColumnParallelLinear(32, 48, True, TensorAxis(), fp8=True).bfloat16()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(random(16, 32).requires_grad_())
    ours = [tensor.untyped_storage().data_ptr() for tensor in layer.parameters()]
    made = [tensor for tensor in kept if tensor.untyped_storage().data_ptr() not in ours]
    assert sum(tensor.nbytes for tensor in made) == 16 * 32 + 2 * 4  # and two scales


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # PyTorch's own, while it traces
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # likewise
@pytest.mark.parametrize(("shape", "recompute"), [(WIDE, "none"), (GATED, "selective"), (WIDE, "full")])
def test_compiled_layers_compute_the_same(shape: dict[str, Any], recompute: Any) -> None:
    model = Model(**shape | {"layers": 2})
    plain, compiled = (
        Stage(model, TensorAxis(), range(2), first=True, last=True, recompute=recompute, fp8=True).bfloat16()
        for _ in range(2)
    )
    for stage in (plain, compiled):
        stage.load_state_dict(random_weights(plain))
    torch.compiler.reset()
    compile_layers(compiled, backend="aot_eager")
    tokens, targets = (random_tokens(model, rows=2, seed=seed) for seed in (1, 2))
    weights = torch.full(tokens.shape, 1 / tokens.numel())
    losses = [stage(tokens, tokens, targets, weights) for stage in (plain, compiled)]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    for value, right in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert value.grad is not None
        assert right.grad is not None
        assert (value.grad - right.grad).norm() < 1e-4 * right.grad.norm()  # measured 8e-6: the last bit of bf16


STEPS, SAVED_AT = 4, 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {"micro_batch": 4},
    "selective": {"micro_batch": 4, "recompute": "selective"},
    "full": {"micro_batch": 4, "recompute": "full"},
    "tp2": {"tp": 2, "micro_batch": 4},
    "tp2 sequence": {"tp": 2, "micro_batch": 4, "sequence_parallel": True},
    "pp2 gpipe": {"pp": 2, "micro_batch": 2, "schedule": "gpipe"},
    "pp2 1f1b full": {"pp": 2, "micro_batch": 2, "recompute": "full"},
    "pp2 interleaved": {"pp": 2, "micro_batch": 2, "schedule": "interleaved", "virtual_stages": 2},
    **{f"dp2 zero{zero}": {"dp": 2, "zero": zero, "micro_batch": 2} for zero in range(4)},
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2, "sequence_parallel": True},
}
if SUPPORTS_ZERO_BUBBLE:
    LAYOUTS["pp2 zero-bubble"] = {"pp": 2, "micro_batch": 2, "schedule": "zero-bubble"}
SHAPES = {"gpt": WIDE, "llama": GATED}
CASES = [(name, "gpt") for name in LAYOUTS] + [(name, "llama") for name in ("one process", "tp2 sequence", "dp2 zero3")]


def train_each(rank: int, jobs: list[Job]) -> list[list[float]]:
    return [losses_of(trainer_of(rank, job), range(STEPS)) for job in jobs]


@pytest.fixture(scope="module")
def losses(pool: Pool) -> Any:
    """Of every case; those with equally many processes in one process group."""

    @cache
    def of_size(devices: int) -> dict[tuple[str, str], list[float]]:
        jobs = {(name, shape): job_of(SHAPES[shape], LAYOUTS[name], precision="fp8") for name, shape in CASES}
        mine = {case: job for case, job in jobs.items() if job.layout.devices == devices}
        return dict(zip(mine, pool.run(devices, train_each, list(mine.values()))[0], strict=True))

    def of_case(name: str, shape: str) -> list[float]:
        return of_size(job_of(WIDE, LAYOUTS[name]).layout.devices)[name, shape]

    return of_case


@pytest.mark.parametrize(("layout", "shape"), [case for case in CASES if case[0] != "one process"])
def test_every_layout_has_the_losses_of_one_process(layout: str, shape: str, losses: Any) -> None:
    """Sums in another order differ in bf16's last bit, and where that moves an element to the next fp8 value by 1/16:
    measured 5e-4. bf16 has 3e-3 (test_precision)."""
    assert losses(layout, shape) == pytest.approx(losses("one process", shape), rel=2e-3)


def test_recompute_gives_the_same_bits(losses: Any) -> None:
    assert losses("full", "gpt") == losses("selective", "gpt") == losses("one process", "gpt")


@pytest.mark.parametrize("shape", SHAPES)
def test_losses_are_within_one_per_cent_of_bf16_and_not_the_same(shape: str, losses: Any, pool: Pool) -> None:
    (reported,) = pool.run(1, train_each, [job_of(SHAPES[shape], LAYOUTS["one process"], precision="bf16")])
    (bf16,) = reported
    assert losses("one process", shape) == pytest.approx(bf16, rel=0.01)
    assert losses("one process", shape) != bf16


def test_another_layout_resumes_from_a_checkpoint(pool: Pool, tmp_path: Path, losses: Any) -> None:
    before, after = (
        job_of(WIDE, LAYOUTS[name], precision="fp8", saving={"folder": str(tmp_path)}) for name in ("tp2", "full")
    )
    pool.run(2, save, before)
    (later,) = pool.run(1, resume, after)
    assert later == pytest.approx(losses("one process", "gpt")[SAVED_AT:], rel=2e-3)


def save(rank: int, job: Job) -> None:
    trainer = trainer_of(rank, job)
    losses_of(trainer, range(SAVED_AT))
    checkpoints = Checkpointer(trainer)
    checkpoints.save(TrainState(SAVED_AT, SAVED_AT * job.batch.size))
    checkpoints.finish()


def resume(rank: int, job: Job) -> list[float]:
    trainer = trainer_of(rank, job)
    assert Checkpointer(trainer).resume().iteration == SAVED_AT
    return losses_of(trainer, range(SAVED_AT, STEPS))


def test_any_machine_trains_in_fp8_and_the_log_says_so(tmp_path: Path) -> None:
    code, out, err = finished("tiny", "--set", "precision=fp8", "--steps", "2")
    assert (code, err) == (0, "")
    (tmp_path / "train.log").write_text(out)
    (trial,) = read_file(tmp_path / "train.log").trials
    assert trial.setup.precision == "fp8"


def test_a_gpu_without_fp8_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fp8_support(CPU)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, has=capability: has)
        check_fp8_support(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(Mistake, match=r"NVIDIA A100-SXM4-80GB has no fp8 GEMMs: .* 8\.0, .* 8\.9; .* bf16\."):
        check_fp8_support(torch.device("cuda"))
