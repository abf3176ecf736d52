"""Residual add and norm with their gradients, by our Triton kernels on a GPU, against PyTorch in float64."""

import pytest
import torch
from torch import Tensor, nn

from trimaran.engine.kernels.fused_add_norm import fused_add_norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
# Relative to the largest element. bf16 has eight significant bits, and two roundings follow each other.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize(
    ("rows", "width", "adds", "consumers"),
    [(1, 8, True, 1), (300, 70, False, 3), (2048, 2048, True, 1), (4096, 1024, False, 3), (100, 8192, True, 2)],
)
def test_it_is_the_norm_of_the_sum(
    rows: int, width: int, adds: bool, consumers: int, kind: type[nn.LayerNorm] | type[nn.RMSNorm], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    norm = kind(width, eps=1e-5, device="cuda", dtype=dtype)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.2)
    x, y = (torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    grads = [torch.randn(rows, width, device="cuda", dtype=dtype) for _ in range(consumers + 1)]
    y_bias = torch.randn(width, device="cuda", dtype=dtype, requires_grad=True)
    found = fused_add_norm(x, y if adds else None, y_bias if adds else None, norm, consumers)
    torch.autograd.backward(found, grads)

    exact = kind(width, eps=1e-5, dtype=torch.float64)
    exact.load_state_dict(norm.state_dict())
    given = [part.detach().cpu().double().requires_grad_() for part in (x, y, y_bias)]
    total = given[0] + given[1] + given[2] if adds else given[0] * 1
    torch.autograd.backward([total] + [exact(total)] * consumers, [grad.cpu().double() for grad in grads])
    assert len(found) == consumers + 1
    close(found[0], total, dtype)
    for normed in found[1:]:
        close(normed, exact(total), dtype)
    close(x.grad, given[0].grad, dtype)
    if adds:
        close(y.grad, given[1].grad, dtype)
        close(y_bias.grad, given[2].grad, dtype)
    for parameter, right in zip(norm.parameters(), exact.parameters(), strict=True):
        close(parameter.grad, right.grad, dtype)


def close(found: Tensor | None, right: Tensor | None, dtype: torch.dtype) -> None:
    assert found is not None
    assert right is not None
    error = (found.detach().cpu().double() - right.detach()).abs().max()
    assert error <= TOLERANCE[dtype] * right.detach().abs().max()
