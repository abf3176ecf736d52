"""The bytes of weights, gradients and optimizer states that cost.states predicts for a rank, against the tensors of a
real Trainer on real processes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from tests.engine.jobs import GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.test_parity import LAYOUTS as MATRIX
from tests.engine.test_parity import jobs
from tests.engine.trainers import run_steps, trainer_of
from trimaran.cost.states import rank_states
from trimaran.engine.parallel.pipeline import LazyBufferStage
from trimaran.engine.trainer import Trainer
from trimaran.spec import Job

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"micro_batch": 4},
    "tp2": {"tp": 2, "micro_batch": 4, "sequence_parallel": True},
    "pp2": {"pp": 2, "micro_batch": 2},
    "pp2 interleaved": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    "dp2": {"dp": 2, "micro_batch": 2},
    **{f"dp2 zero{z}": {"dp": 2, "zero": z, "micro_batch": 2} for z in (1, 2, 3)},
    **{f"dp3 zero{z}": {"dp": 3, "zero": z} for z in (1, 3)},  # shards of unequal size
    **{f"pp2 dp2 zero{z}": {"pp": 2, "dp": 2, "zero": z, "micro_batch": 2} for z in (1, 3)},
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2},
}
CASES = [
    (name, model, precision)
    for name in LAYOUTS
    for model, precision in (("gpt", "bf16"), ("llama", "fp32"))
    if precision == "bf16" or name in ("one", "dp2 zero1", "dp3 zero3", "tp2 pp2 dp2")
]


@pytest.mark.parametrize(("layout", "model", "precision"), CASES)
def test_every_rank_holds_exactly_what_the_cost_model_predicts(
    pool: Pool, layout: str, model: str, precision: str
) -> None:
    shape = {"gpt": GPT, "llama": LLAMA | {"tied_embeddings": False}}[model]
    job = job_of(shape, LAYOUTS[layout], precision=precision, batch={"size": 12 if "dp3" in layout else 8})
    compare([job], pool)


@pytest.mark.parametrize("layout", ["one", "tp2", "pp2", "dp2", "dp2 zero1", "dp3 zero1", "dp2 zero3", "tp2 pp2 dp2"])
def test_8_bit_moments_take_exactly_what_the_cost_model_predicts(pool: Pool, layout: str) -> None:
    """Large tensors in blocks of 256, small and odd ones in fp32; which are which depends on how they are sharded."""
    size = 12 if "dp3" in layout else 8
    compare([job_of(GPT | {"hidden": 64}, LAYOUTS[layout], optimizer="adam-8bit", batch={"size": size})], pool)


@pytest.mark.parametrize("layout", MATRIX)
def test_prediction_is_exact_in_every_layout_of_the_parity_matrix(pool: Pool, layout: str) -> None:
    """For a tied and an untied model."""
    tied, *_, untied = jobs(layout)
    compare([tied, untied], pool)


def compare(jobs: list[Job], pool: Pool) -> None:
    for rank, of_rank in enumerate(pool.run(jobs[0].layout.devices, measure_each, jobs)):
        for job, parts in zip(jobs, of_rank, strict=True):
            predicted = vars(rank_states(job, rank))
            if job.layout.zero == 3:
                predicted.pop("weights")  # gathered and freed block by block
                parts.pop("weights")
            if job.layout.virtual_stages > 1 and job.layout.zero:
                # Each stage is reduced after its last micro batch: the sum over stages is an upper bound.
                assert parts.pop("gradients") <= predicted.pop("gradients"), f"rank {rank} of {job.name}"
            assert parts == predicted, f"rank {rank} of {job.name}"


def measure_each(rank: int, jobs: list[Job]) -> list[dict[str, int]]:
    return [peak_bytes(rank, job) for job in jobs]


def peak_bytes(rank: int, job: Job) -> dict[str, int]:
    """The peak of each part in two steps."""
    trainer = trainer_of(rank, job)
    peaks: Counter[str] = Counter()

    def measure() -> None:
        for part, size in current_bytes(trainer).items():
            peaks[part] = max(peaks[part], size)

    # After every forward pass, before every backward pass, and when the last is done but not yet reduced.
    for module in trainer.weights.modules:
        module.register_forward_hook(lambda *_: measure())
    with ExitStack() as patches:
        for owner, name in (
            (trainer.weights, "reduce_gradients"),
            (LazyBufferStage, "backward_one_chunk"),
            (LazyBufferStage, "perform_reduce_grad"),
        ):
            patches.enter_context(before_each_call(owner, name, measure))
        run_steps(trainer, range(2))
    states = [state for states in trainer.optimizer.state.values() for state in states.values()]
    reduced = storage_bytes(master.gradient for master in trainer.weights.masters)
    return {**peaks, "reduced": reduced, "optimizer": storage_bytes(states)}


@contextmanager
def before_each_call(owner: Any, name: str, function: Callable[[], None]) -> Iterator[None]:
    method = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        function()
        return method(*args, **kwargs)

    setattr(owner, name, patched)
    try:
        yield
    finally:
        setattr(owner, name, method)


def current_bytes(trainer: Trainer) -> dict[str, int]:
    weights = trainer.weights
    gathered = [
        parameter
        for module in weights.modules
        for part in module.modules()
        if isinstance(part, FSDPModule) and (group := part._get_fsdp_state()._fsdp_param_group)
        for parameter in group.fsdp_params
    ]
    compute = [t for p in gathered for t in p.all_gather_outputs] if gathered else weights.parameters
    values = [master.value for master in weights.masters]
    mine = {t.untyped_storage().data_ptr() for t in compute}
    gradients: list[Tensor | None] = [value.grad for value in values]
    if gathered:
        gradients += [parameter.grad for parameter in weights.parameters]
        gradients += [parameter.unsharded_accumulated_grad for parameter in gathered]
        gradients += [p._unsharded_param.grad for p in gathered if hasattr(p, "_unsharded_param")]
    return {
        "weights": storage_bytes(compute),
        "master": storage_bytes(v for v in values if v.untyped_storage().data_ptr() not in mine),
        "gradients": storage_bytes(g for g in gradients if g is not None and g.dtype == torch.float32),
    }


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Each storage once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    local = [part for t in local for part in ((t.codes, t.scale, t.qmap) if hasattr(t, "codes") else (t,))]
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local) if s.nbytes()}.values())
