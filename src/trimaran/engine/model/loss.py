"""Logits and cross entropy in one, a chunk of tokens at a time, the vocabulary cut over the tensor ranks.

The logits of a batch are the largest tensor of a training step (tokens x vocabulary). Here only one chunk of them
exists at a time: its loss and its gradients are computed at once, and the backward pass only hands these on.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimaran.cost.engine_memory import chunk_tokens
from trimaran.engine.parallel.tensor_parallel import TensorAxis


def linear_cross_entropy(
    x: Tensor, matrix: Tensor, targets: Tensor, token_weights: Tensor, vocab: int, axis: TensorAxis
) -> Tensor:
    """Sum over tokens of token_weights x cross entropy of (x @ matrix.T), in fp32.

    x: [tokens, hidden], the same on every rank. matrix: this rank's rows of the padded vocabulary; rows at or above
    `vocab` are padding, which takes no part, so that the loss does not depend on how much of it there is.
    """
    return LinearCrossEntropy.apply(x, matrix, targets, token_weights, vocab, axis)


class LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, targets: Tensor, token_weights: Tensor, vocab: int, axis: TensorAxis
    ) -> Tensor:
        wants_gradients = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        grad_x, grad_matrix = torch.empty_like(x) if wants_gradients else None, None
        compute = compiled_chunk_loss() if x.is_cuda and axis.size == 1 else chunk_loss
        size = int(chunk_tokens(matrix.shape[0]))
        for begin in range(0, len(x), size):
            part = slice(begin, begin + size)
            loss_chunk, grad_logits = compute(x[part], matrix, targets[part], token_weights[part].float(), vocab, axis)
            loss += loss_chunk
            if grad_x is not None:
                torch.mm(grad_logits, matrix, out=grad_x[part])
                if grad_matrix is None:
                    # Several chunks are summed in fp32: a bf16 sum would lose the small ones.
                    grad_matrix = grad_logits.t() @ x[part]
                    grad_matrix = grad_matrix.float() if size < len(x) else grad_matrix
                else:
                    add_product(grad_matrix, grad_logits.t(), x[part])
            del grad_logits  # before there are the next chunk's
        if grad_x is not None:
            assert grad_matrix is not None
            ctx.save_for_backward(grad_x, grad_matrix.to(matrix.dtype))
            ctx.scaled = False
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """In place, because these are as large as the weights they belong to. A zero-bubble schedule comes here twice
        with the same `grad`: for the activations, then for the weights."""
        grad_x, grad_matrix = ctx.saved_tensors
        if not ctx.scaled:
            grad_x.data.mul_(grad.to(grad_x.dtype))  # .data: autograd refuses changed tensors at a second visit
            grad_matrix.data.mul_(grad.to(grad_matrix.dtype))
            ctx.scaled = True
        return grad_x, grad_matrix, None, None, None, None


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """To a total in fp32; on a GPU by the product's own kernel."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(a @ b)


@cache
def compiled_chunk_loss() -> Callable[..., tuple[Tensor, Tensor]]:
    """Three kernels around the product, which read the logits in the precision it gives them in."""
    return torch.compile(chunk_loss, fullgraph=True, dynamic=False)


def chunk_loss(
    x: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor, vocab: int, axis: TensorAxis
) -> tuple[Tensor, Tensor]:
    """The weighted loss of some tokens, and its gradient by their logits in x's precision."""
    rows = matrix.shape[0]
    first = axis.rank * rows
    logits = (x @ matrix.t()).float()
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
    loss = (weights * (sums[0].log() - sums[1])).sum()
    grad = exponentials.mul_((weights / sums[0])[:, None]).to(x.dtype)
    at_target = weights * (sums[1].exp() / sums[0] - 1)
    grad.scatter_(1, local, torch.where(mine, at_target.to(x.dtype), grad.gather(1, local)[:, 0])[:, None])
    return loss, grad
