"""The model: a decoder-only transformer in the variants of spec.Model, as one pipeline stage of one tensor rank.

A stage holds some layers; the first one also the embedding, the last one the final norm and the head. What it lacks is
None and is passed by, so one forward serves every stage. Layers keep their number in the whole model, so that a
parameter has the same name under every layout.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trimaran.engine.kernels.gelu import gelu
from trimaran.engine.kernels.mkl_warmup import settle
from trimaran.engine.kernels.residual_norm import add_and_norm, can_add_and_norm
from trimaran.engine.kernels.rms_norm import RMSNorm
from trimaran.engine.model.attention_mask import Mask, attention_mask
from trimaran.engine.model.linear import ColumnLinear, RowLinear
from trimaran.engine.model.loss import linear_cross_entropy
from trimaran.engine.parallel.tensor_parallel import TensorAxis, into_layers, out_of_layers
from trimaran.spec import Model
from trimaran.spec.trainer import Recompute

NORM_EPS = 1e-5

settle()  # before anything is computed


class Stage(nn.Module):
    """Layers first..last-1 of the model, with its ends where they belong to this stage."""

    def __init__(
        self,
        model: Model,
        axis: TensorAxis,
        layers: range,
        *,
        first: bool,
        last: bool,
        recompute: Recompute = "none",
        eight_bits: bool = False,
    ) -> None:
        """`eight_bits`: of the layers' products; embedding, attention, norms and head stay as they are."""
        super().__init__()
        self.model, self.axis, self.recompute = model, axis, recompute
        self.embedding = Embedding(model, axis) if first else None
        self.layers = nn.ModuleDict({str(number): Block(model, axis, recompute, eight_bits) for number in layers})
        self.norm = norm(model) if last else None
        self.head = Head(model, axis) if last and not (first and model.tied_embeddings) else None
        self._masks: dict[Any, Mask] = {}

    def forward(
        self,
        x: Tensor,
        tokens: Tensor,
        targets: Tensor,
        token_weights: Tensor,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """x: the activation from the stage before (ignored on the first). The rest is the micro batch, [rows, seq]
        each, which every stage gets. Gives the activation for the next stage, or on the last one the weighted loss."""
        x = self.activations(x, tokens, documents, prefix, positions)
        return x if self.norm is None else self.loss(x, targets, token_weights)

    def activations(
        self,
        x: Tensor,
        tokens: Tensor,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """What leaves this stage's layers: for the next stage, or on the last one through the final norm."""
        if self.embedding is not None:
            x = self.embedding(tokens, positions)
        mask = self.mask(x, documents, prefix, rows=tokens.shape[0])
        turn = rotation(self.model, x, positions) if self.model.position == "rotary" else None
        for block in self.layers.values():
            if self.recompute == "full" and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, turn, use_reentrant=False)
            else:
                x = block(x, mask, turn)
        return x if self.norm is None else self.norm(x)

    def mask(self, x: Tensor, documents: Tensor | None, prefix: Tensor | None, rows: int) -> Mask:
        """One that depends on no data is made once: ALiBi's is large, and each micro batch in flight would keep its."""
        if documents is not None or prefix is not None:
            return attention_mask(self.model, self.axis, x, documents, prefix, rows)
        kind = (rows, x.dtype, x.device)
        if kind not in self._masks:
            self._masks[kind] = attention_mask(self.model, self.axis, x, None, None, rows)
        return self._masks[kind]

    def logits(self, x: Tensor) -> Tensor:
        """[tokens, vocab] from the last stage's activations; with several tensor ranks this one's columns of it."""
        matrix = self.logit_matrix
        real = max(0, self.model.vocab - self.axis.rank * len(matrix))  # rows above are padding
        return into_layers(x, self.axis) @ matrix[:real].t()

    def loss(self, x: Tensor, targets: Tensor, token_weights: Tensor) -> Tensor:
        x = into_layers(x, self.axis)
        return linear_cross_entropy(
            x, self.logit_matrix, targets.flatten(), token_weights.flatten(), self.model.vocab, self.axis
        )

    @property
    def logit_matrix(self) -> Tensor:
        if self.head is not None:
            return self.head.weight
        assert self.embedding is not None  # a tied stage that is first and last
        return self.embedding.word


class Embedding(nn.Module):
    def __init__(self, model: Model, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        self.word = nn.Parameter(torch.empty(axis.part(model.vocab_rows(axis.size)), model.hidden))
        learned = model.position == "learned"
        self.position = nn.Parameter(torch.empty(model.seq_len, model.hidden)) if learned else None
        self.norm = norm(model) if model.embedding_norm else None

    def forward(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        x = out_of_layers(self.lookup(tokens.flatten()), self.axis)
        if self.position is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            x = x + F.embedding(self.axis.tokens(positions.flatten()), self.position)
        return x if self.norm is None else self.norm(x)

    def lookup(self, tokens: Tensor) -> Tensor:
        """Of the rows this rank has; tokens that others have give zeros."""
        if self.axis.size == 1:
            return F.embedding(tokens, self.word)
        rows = self.word.shape[0]
        local = tokens - self.axis.rank * rows
        absent = (local < 0) | (local >= rows)
        return F.embedding(local.masked_fill(absent, 0), self.word).masked_fill(absent[:, None], 0.0)


class Head(nn.Module):
    """The logits' own matrix: with untied embeddings, or as a copy where the embedding is on another stage."""

    def __init__(self, model: Model, axis: TensorAxis) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(axis.part(model.vocab_rows(axis.size)), model.hidden))


class Block(nn.Module):
    def __init__(self, model: Model, axis: TensorAxis, recompute: Recompute, eight_bits: bool) -> None:
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = Attention(model, axis, recompute, eight_bits)
        self.mlp_norm = norm(model)
        self.mlp = MLP(model, axis, eight_bits)

    def forward(self, x: Tensor, mask: Mask, turn: Any) -> Tensor:
        if torch.compiler.is_compiling() and can_add_and_norm(x) and not self.attention.qkv.eight_bits:
            x, *normed = add_and_norm(x, None, None, self.attention_norm, self.attention.readers)
            out = self.attention.out
            y = F.linear(self.attention.seen(normed, mask, turn), out.weight)
            x, *normed = add_and_norm(x, y, out.bias, self.mlp_norm, self.mlp.readers)
            return x + self.mlp(normed)
        x = x + self.attention([self.attention_norm(x)], mask, turn)
        return x + self.mlp([self.mlp_norm(x)])


class Attention(nn.Module):
    """Query, key and value come from one product. Its outputs lie group by group: the queries that share a key/value
    head, then that key and value, so that a tensor rank's part is whole groups."""

    def __init__(self, model: Model, axis: TensorAxis, recompute: Recompute, eight_bits: bool) -> None:
        super().__init__()
        self.model, self.groups, self.recompute = model, axis.part(model.kv_heads), recompute
        self.shared = model.heads // model.kv_heads
        width = (model.heads + 2 * model.kv_heads) * model.head_dim
        self.qkv = ColumnLinear(model.hidden, width, model.bias, axis, eight_bits)
        self.out = RowLinear(model.hidden, model.hidden, model.bias, axis, eight_bits)

    @property
    def readers(self) -> int:
        """How many products read its input where they are compiled: see `products`."""
        return 1 if self.recompute == "selective" else 3

    def forward(self, inputs: list[Tensor], mask: Mask, turn: Any) -> Tensor:
        """Of [tokens, hidden]: once, or once for each reader."""
        return self.out(self.seen(inputs, mask, turn))

    def seen(self, inputs: list[Tensor], mask: Mask, turn: Any) -> Tensor:
        """Before the last product."""
        if len(inputs) > 1:
            return self.attended(*self.products(inputs, turn), mask)
        if self.recompute == "selective" and torch.is_grad_enabled():
            return checkpoint(self.look, self.qkv(inputs[0]), mask, turn, use_reentrant=False)
        return self.look(self.qkv(inputs[0]), mask, turn)

    def look(self, qkv: Tensor, mask: Mask, turn: Any) -> Tensor:
        """[tokens, width of qkv] -> [tokens, heads x head_dim], all of this rank."""
        return self.attended(*self.heads(qkv, self.model.seq_len, turn), mask)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask.bias, is_causal=mask.bias is None, enable_gqa=self.shared > 1
        )
        return y.transpose(1, 2).reshape(-1, self.groups * self.shared * self.model.head_dim)

    def heads(self, qkv: Tensor, seq: int, turn: Any) -> tuple[Tensor, Tensor, Tensor]:
        """[rows x seq, width of qkv] -> query, key and value, [rows, heads, seq, dim] each."""
        qkv = qkv.view(-1, seq, self.groups, self.shared + 2, self.model.head_dim)
        q = qkv[:, :, :, : self.shared].flatten(2, 3).transpose(1, 2)
        k, v = qkv[:, :, :, self.shared].transpose(1, 2), qkv[:, :, :, self.shared + 1].transpose(1, 2)
        return (q, k, v) if turn is None else (turned(q, *turn), turned(k, *turn), v)

    def products(self, inputs: list[Tensor], turn: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The same from [rows x seq, hidden], by a product each: copies of the weights' rows are smaller than one of
        the gradients by query, key and value, which one product would need side by side. Without tensor ranks, and not
        in 8 bits: there gradients are written anew in any case."""
        places = (slice(self.shared), slice(self.shared, self.shared + 1), slice(self.shared + 1, None))
        q, k, v = (self._product(x, place).transpose(1, 2) for x, place in zip(inputs, places, strict=True))
        return (q, k, v) if turn is None else (turned(q, *turn), turned(k, *turn), v)

    def _product(self, x: Tensor, place: slice) -> Tensor:
        """Of these places in every group: [rows, seq, heads, dim]."""
        dim = self.model.head_dim
        weight, bias = (
            whole if whole is None else whole.unflatten(0, (self.groups, -1, dim))[:, place].flatten(0, 2)
            for whole in (self.qkv.weight, self.qkv.bias)
        )
        return F.linear(x, weight, bias).unflatten(-1, (-1, dim)).unflatten(0, (-1, self.model.seq_len))


class MLP(nn.Module):
    """Up, GELU, down; or gated (SwiGLU, arXiv 2002.05202), where each gate lies beside the channel it opens, so that
    one product gives both."""

    def __init__(self, model: Model, axis: TensorAxis, eight_bits: bool) -> None:
        super().__init__()
        self.gated = model.mlp == "swiglu"
        width = model.ffn_hidden * (2 if self.gated else 1)
        self.up = ColumnLinear(model.hidden, width, model.bias, axis, eight_bits)
        self.down = RowLinear(model.ffn_hidden, model.hidden, model.bias, axis, eight_bits)

    @property
    def readers(self) -> int:
        """How many products read its input where they are compiled."""
        return 2 if self.gated else 1

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Of [tokens, hidden]: once, or once for each reader."""
        if not self.gated:
            return self.down(gelu(self.up(inputs[0])))
        if len(inputs) == 1:
            gate, channel = self.up(inputs[0]).unflatten(-1, (-1, 2)).unbind(-1)
        else:
            gate, channel = (self._product(x, place) for place, x in enumerate(inputs))
        return self.down(F.silu(gate) * channel)

    def _product(self, x: Tensor, place: int) -> Tensor:
        """Of the gates or of the channels alone: numbers that lie side by side are read many at once."""
        weight, bias = (
            whole if whole is None else whole.unflatten(0, (-1, 2))[:, place]
            for whole in (self.up.weight, self.up.bias)
        )
        return F.linear(x, weight, bias)


def norm(model: Model) -> nn.Module:
    if model.norm == "rmsnorm":
        return RMSNorm(model.hidden, eps=NORM_EPS)
    return nn.LayerNorm(model.hidden, eps=NORM_EPS)


def rotation(model: Model, like: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles (arXiv 2104.09864), [rows or 1, 1, seq, head_dim]."""
    half = model.head_dim // 2
    frequencies = model.rotary_base ** (-torch.arange(half, device=like.device, dtype=torch.float32) / half)
    places = torch.arange(model.seq_len, device=like.device)[None] if positions is None else positions
    angles = (places[..., None].float() * frequencies).repeat(1, 1, 2)[:, None]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Channel i turns with channel i + head_dim/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
