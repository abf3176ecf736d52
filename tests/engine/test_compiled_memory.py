"""What a compiled layer saves for its backward pass: the formula against what PyTorch's partitioner decides. Here it
decides on a CPU, with the decompositions of a GPU's compiler; for a GPT an H200 had the same sizes (tests/cost)."""

from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from tests.engine.jobs import GPT, LLAMA, job_of
from tests.engine.stages import random_tokens, random_weights
from tests.engine.trainers import trainer_of
from trimaran.cost.columns import RecomputeCode, columns_of
from trimaran.cost.engine_activations import block_activation_bytes
from trimaran.engine.kernels.compile import compile_layers
from trimaran.spec import Job

WIDE = {"hidden": 64, "seq_len": 128}  # so that row statistics and weights are small beside activations
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpt": (GPT | WIDE, "none", "bf16"),
    "gpt selective": (GPT | WIDE, "selective", "bf16"),
    "gpt fp32": (GPT | WIDE, "none", "fp32"),
    "llama": (LLAMA | WIDE | {"ffn_hidden": 176, "kv_heads": 8}, "none", "bf16"),
    "llama, shared keys": (LLAMA | WIDE | {"ffn_hidden": 176}, "none", "bf16"),
    "llama selective": (LLAMA | WIDE | {"ffn_hidden": 176}, "selective", "bf16"),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, while it traces
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_layer_saves_what_the_formula_predicts(case: str) -> None:
    model, recompute, precision = CASES[case]
    job = job_of(model, {"micro_batch": 8, "recompute": recompute}, precision=precision)
    fewer = job.replace(model=job.model.replace(layers=job.model.layers - 1))
    found = saved_bytes(job) - saved_bytes(fewer)
    columns = columns_of([job])
    expected = float(np.squeeze(block_activation_bytes(columns, columns.recompute == RecomputeCode.SELECTIVE, True)))
    assert expected == pytest.approx(found, rel=0.03)


def saved_bytes(job: Job) -> int:
    """Of all tensors, except weights, that the forward pass of one micro batch saves for the backward pass."""
    torch.compiler.reset()
    (stage,) = trainer_of(0, job).weights.modules
    stage.load_state_dict(random_weights(stage))
    eager = lambda graph, _: make_boxed_func(graph.forward)  # noqa: E731
    backend = aot_autograd(
        fw_compiler=eager,
        bw_compiler=eager,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    compile_layers(stage, backend=backend)
    tokens = random_tokens(job.model, rows=8, seed=1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = tensor  # a reference, so that no other tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stage.activations(tokens, tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
