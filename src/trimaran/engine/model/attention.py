"""Multi-head and grouped-query attention, with rotary position embeddings."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trimaran.engine.model.linear import ColumnParallelLinear, RowParallelLinear
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model
from trimaran.spec.trainer import Recompute

Rotary = tuple[Tensor, Tensor] | None  # cosine and sine of the rotary angles, where the model has them


class Attention(nn.Module):
    """Query, key and value come from one GEMM. Its outputs are ordered by group: the queries that share a key/value
    head, then that key and value, so that a tensor rank's shard is whole groups."""

    def __init__(self, model: Model, axis: TensorAxis, recompute: Recompute, fp8: bool) -> None:
        super().__init__()
        self.model, self.groups, self.recompute = model, axis.shard_size(model.kv_heads), recompute
        self.queries_per_group = model.heads // model.kv_heads
        width = (model.heads + 2 * model.kv_heads) * model.head_dim
        self.qkv = ColumnParallelLinear(model.hidden, width, model.bias, axis, fp8)
        self.out = RowParallelLinear(model.hidden, model.hidden, model.bias, axis, fp8)

    @property
    def consumers(self) -> int:
        """GEMMs that read the input in a compiled layer: see `project_separately`."""
        return 1 if self.recompute == "selective" else 3

    def forward(self, inputs: list[Tensor], mask: Tensor | None, rotary: Rotary) -> Tensor:
        """`inputs`: [tokens, hidden], once or once for each consumer."""
        return self.out(self.context(inputs, mask, rotary))

    def context(self, inputs: list[Tensor], mask: Tensor | None, rotary: Rotary) -> Tensor:
        """Before the output projection."""
        if len(inputs) > 1:
            return self.sdpa(*self.project_separately(inputs, rotary), mask)
        if self.recompute == "selective" and torch.is_grad_enabled():
            return checkpoint(self.attend, self.qkv(inputs[0]), mask, rotary, use_reentrant=False)
        return self.attend(self.qkv(inputs[0]), mask, rotary)

    def attend(self, qkv: Tensor, mask: Tensor | None, rotary: Rotary) -> Tensor:
        """[tokens, width of qkv] -> [tokens, heads x head_dim], all of this rank."""
        return self.sdpa(*self.split_qkv(qkv, self.model.seq_len, rotary), mask)

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Causal where there is no mask."""
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.queries_per_group > 1
        )
        return y.transpose(1, 2).reshape(-1, self.groups * self.queries_per_group * self.model.head_dim)

    def split_qkv(self, qkv: Tensor, seq: int, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """[rows x seq, width of qkv] -> query, key and value, [rows, heads, seq, dim] each."""
        qkv = qkv.view(-1, seq, self.groups, self.queries_per_group + 2, self.model.head_dim)
        q = qkv[:, :, :, : self.queries_per_group].flatten(2, 3).transpose(1, 2)
        k, v = (qkv[:, :, :, self.queries_per_group + i].transpose(1, 2) for i in (0, 1))
        return apply_rotary(q, rotary), apply_rotary(k, rotary), v

    def project_separately(self, inputs: list[Tensor], rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """The same from [rows x seq, hidden], by one GEMM each: copies of the weights' rows are smaller than a copy of
        the gradients of query, key and value, which one GEMM would need side by side. Without tensor parallelism, and
        not in fp8, where gradients are rewritten in any case."""
        n = self.queries_per_group
        in_group = (slice(n), slice(n, n + 1), slice(n + 1, None))
        q, k, v = (self._project(x, rows).transpose(1, 2) for x, rows in zip(inputs, in_group, strict=True))
        return apply_rotary(q, rotary), apply_rotary(k, rotary), v

    def _project(self, x: Tensor, rows: slice) -> Tensor:
        """By these rows of every group: [rows, seq, heads, dim]."""
        dim = self.model.head_dim
        weight, bias = (
            whole if whole is None else whole.unflatten(0, (self.groups, -1, dim))[:, rows].flatten(0, 2)
            for whole in (self.qkv.weight, self.qkv.bias)
        )
        return F.linear(x, weight, bias).unflatten(-1, (-1, dim)).unflatten(0, (-1, self.model.seq_len))


def rotary_cos_sin(model: Model, like: Tensor, positions: Tensor | None) -> Rotary:
    """Cosine and sine of the rotary angles (arXiv 2104.09864), [rows or 1, 1, seq, head_dim]."""
    if model.position != "rotary":
        return None
    half = model.head_dim // 2
    frequencies = model.rotary_base ** (-torch.arange(half, device=like.device, dtype=torch.float32) / half)
    places = torch.arange(model.seq_len, device=like.device)[None] if positions is None else positions
    angles = (places[..., None].float() * frequencies).repeat(1, 1, 2)[:, None]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def apply_rotary(x: Tensor, rotary: Any) -> Tensor:
    """Channel i is rotated with channel i + head_dim/2."""
    if rotary is None:
        return x
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
