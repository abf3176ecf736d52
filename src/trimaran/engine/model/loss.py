"""Fused linear cross entropy: a chunk of tokens at a time, the vocabulary sharded over the tensor ranks.

The logits of a batch are the largest tensor of a training step (tokens x vocabulary). Here only one chunk of them
exists at a time: its loss and its gradients are computed together, and the backward pass only returns the gradients.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec.own_engine import loss_chunk_tokens


class LinearCrossEntropy(torch.autograd.Function):
    """Sum over tokens of token_weights x cross entropy of (x @ weight.T), in fp32.

    x: [tokens, hidden], the same on every rank. weight: this rank's rows of the padded vocabulary; rows at or above
    `vocab` are padding and are masked out, so the loss does not depend on how much of it there is.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, token_weights: Tensor, vocab: int, axis: TensorAxis
    ) -> Tensor:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        grad_x, grad_weight = torch.empty_like(x) if needs_grad else None, None
        compute = compiled_chunk_loss() if x.is_cuda and axis.size == 1 else chunk_loss
        size = int(loss_chunk_tokens(weight.shape[0]))
        for begin in range(0, len(x), size):
            chunk = slice(begin, begin + size)
            partial, grad_logits = compute(x[chunk], weight, targets[chunk], token_weights[chunk].float(), vocab, axis)
            loss += partial
            if grad_x is not None:
                torch.mm(grad_logits, weight, out=grad_x[chunk])
                if grad_weight is None:
                    # Several chunks are summed in fp32: a bf16 sum would lose the small ones.
                    grad_weight = grad_logits.t() @ x[chunk]
                    grad_weight = grad_weight.float() if size < len(x) else grad_weight
                else:
                    addmm_fp32_(grad_weight, grad_logits.t(), x[chunk])
            del grad_logits  # before the next chunk's are allocated
        if grad_x is not None:
            assert grad_weight is not None
            ctx.save_for_backward(grad_x, grad_weight.to(weight.dtype))
            ctx.scaled = False
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """In place, because these are as large as the weights they belong to. A zero-bubble schedule calls this twice
        with the same `grad`: for the activations, then for the weights."""
        grad_x, grad_weight = ctx.saved_tensors
        if not ctx.scaled:
            grad_x.data.mul_(grad.to(grad_x.dtype))  # .data: autograd refuses modified tensors in the second call
            grad_weight.data.mul_(grad.to(grad_weight.dtype))
            ctx.scaled = True
        return grad_x, grad_weight, None, None, None, None


def addmm_fp32_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b with a total in fp32; on a GPU in the GEMM's own epilogue."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(a @ b)


@cache
def compiled_chunk_loss() -> Callable[..., tuple[Tensor, Tensor]]:
    """Three kernels around the GEMM, which read the logits in the precision of its output."""
    return torch.compile(chunk_loss, fullgraph=True, dynamic=False)


def chunk_loss(
    x: Tensor, weight: Tensor, targets: Tensor, token_weights: Tensor, vocab: int, axis: TensorAxis
) -> tuple[Tensor, Tensor]:
    """The weighted loss of some tokens, and its gradient with respect to their logits in x's precision."""
    rows = weight.shape[0]
    first = axis.rank * rows
    logits = (x @ weight.t()).float()
    logits[:, min(max(vocab - first, 0), rows) :] = -torch.inf
    highest = logits.amax(1)
    if axis.size > 1:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=axis.group)
    logits.sub_(highest[:, None])
    local = targets - first
    mine = (local >= 0) & (local < rows)
    local = local.clamp(0, rows - 1)[:, None]
    target_logit = torch.where(mine, logits.gather(1, local)[:, 0], 0.0)
    exponentials = logits.exp_()
    sums = torch.stack([exponentials.sum(1), target_logit])
    if axis.size > 1:
        dist.all_reduce(sums, group=axis.group)
    loss = (token_weights * (sums[0].log() - sums[1])).sum()
    grad = exponentials.mul_((token_weights / sums[0])[:, None]).to(x.dtype)
    at_target = token_weights * (sums[1].exp() / sums[0] - 1)
    grad.scatter_(1, local, torch.where(mine, at_target.to(x.dtype), grad.gather(1, local)[:, 0])[:, None])
    return loss, grad
