"""A decoder-only transformer in the variants of spec.Model, as one pipeline stage of one tensor rank.

A stage holds some layers; the first one also the embedding, the last one the final norm and the head. Missing parts are
None and are skipped, so one forward serves every stage. Layers keep their index in the whole model, so that a parameter
has the same name under every layout.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trimaran.engine.kernels.fused_add_norm import WIDEST, fused_add_norm
from trimaran.engine.model.attention import Attention, Rotary, rotary_cos_sin
from trimaran.engine.model.attention_mask import attention_mask
from trimaran.engine.model.loss import LinearCrossEntropy
from trimaran.engine.model.mlp import MLP
from trimaran.engine.model.norm import build_norm
from trimaran.engine.parallel.tensor_parallel import TensorAxis, enter_tp, exit_tp
from trimaran.spec import Model
from trimaran.spec.trainer import Recompute

# MKL chooses its kernel for a function at the first call, and not thread-safely (PyTorch's issue 188792, until MKL
# 2025): a first call by several threads may give one thread's results to three digits only. Seen here as the first loss
# of a process, 2.4e-6 too high in four of 450. So each function that the engine calls on whole tensors is called on a
# single element first.
for function in (torch.exp, torch.log, torch.sqrt, torch.sin, torch.cos):
    for dtype in (torch.float32, torch.float64):
        function(torch.ones(1, dtype=dtype))


class Stage(nn.Module):
    """Layers first..last-1 of the model, with embedding and head where they belong to this stage."""

    def __init__(
        self,
        model: Model,
        axis: TensorAxis,
        layers: range,
        *,
        first: bool,
        last: bool,
        recompute: Recompute = "none",
        fp8: bool = False,
    ) -> None:
        """`fp8`: the layers' GEMMs; embedding, attention, norms and head keep their precision."""
        super().__init__()
        self.model, self.axis, self.recompute = model, axis, recompute
        self.embedding = Embedding(model, axis) if first else None
        self.layers = nn.ModuleDict({str(number): Block(model, axis, recompute, fp8) for number in layers})
        self.norm = build_norm(model) if last else None
        # The output matrix is the embedding's, unless untied, or a tied copy because that is on another stage.
        has_head = last and not (first and model.tied_embeddings)
        self.head = nn.Linear(model.hidden, local_vocab_rows(model, axis), bias=False) if has_head else None
        self._masks: dict[Any, Tensor | None] = {}

    def forward(self, x: Tensor, tokens: Tensor, targets: Tensor, token_weights: Tensor, **rest: Tensor) -> Tensor:
        """x: the activation from the previous stage (ignored on the first). The rest is the micro batch, [rows, seq]
        each, which every stage gets. Returns the activation for the next stage, or on the last the weighted loss."""
        x = self.activations(x, tokens, **rest)
        return x if self.norm is None else self.loss(x, targets, token_weights)

    def activations(
        self,
        x: Tensor,
        tokens: Tensor,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The output of this stage's layers, on the last stage after the final norm."""
        if self.embedding is not None:
            x = self.embedding(tokens, positions)
        mask = self.mask(x, documents, prefix, rows=tokens.shape[0])
        rotary = rotary_cos_sin(self.model, x, positions)
        for block in self.layers.values():
            if self.recompute == "full" and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, rotary, use_reentrant=False)
            else:
                x = block(x, mask, rotary)
        return x if self.norm is None else self.norm(x)

    def mask(self, x: Tensor, documents: Tensor | None, prefix: Tensor | None, rows: int) -> Tensor | None:
        """A mask that does not depend on the data is cached: ALiBi's is large, and otherwise each micro batch in flight
        would hold its own."""
        if documents is not None or prefix is not None:
            return attention_mask(self.model, self.axis, x, documents, prefix, rows)
        key = (rows, x.dtype, x.device)
        if key not in self._masks:
            self._masks[key] = attention_mask(self.model, self.axis, x, None, None, rows)
        return self._masks[key]

    def logits(self, x: Tensor) -> Tensor:
        """[tokens, vocab] from the last stage's activations; under tensor parallelism this rank's columns."""
        weight = self.output_weight
        real = max(0, self.model.vocab - self.axis.rank * len(weight))  # rows above are padding
        return enter_tp(x, self.axis) @ weight[:real].t()

    def loss(self, x: Tensor, targets: Tensor, token_weights: Tensor) -> Tensor:
        x, targets, token_weights = enter_tp(x, self.axis), targets.flatten(), token_weights.flatten()
        return LinearCrossEntropy.apply(x, self.output_weight, targets, token_weights, self.model.vocab, self.axis)

    @property
    def output_weight(self) -> Tensor:
        if self.head is not None:
            return self.head.weight
        assert self.embedding is not None  # tied embeddings on a stage that is first and last
        return self.embedding.word


class Embedding(nn.Module):
    def __init__(self, model: Model, axis: TensorAxis) -> None:
        super().__init__()
        self.axis = axis
        self.word = nn.Parameter(torch.empty(local_vocab_rows(model, axis), model.hidden))
        learned = model.position == "learned"
        self.position = nn.Parameter(torch.empty(model.seq_len, model.hidden)) if learned else None
        self.norm = build_norm(model) if model.embedding_norm else None

    def forward(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        x = exit_tp(self.lookup(tokens.flatten()), self.axis)
        if self.position is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            x = x + F.embedding(self.axis.local_tokens(positions.flatten()), self.position)
        return x if self.norm is None else self.norm(x)

    def lookup(self, tokens: Tensor) -> Tensor:
        """From this rank's rows of the vocabulary; zeros for tokens of other ranks."""
        if self.axis.size == 1:
            return F.embedding(tokens, self.word)
        rows = self.word.shape[0]
        local = tokens - self.axis.rank * rows
        absent = (local < 0) | (local >= rows)
        return F.embedding(local.masked_fill(absent, 0), self.word).masked_fill(absent[:, None], 0.0)


def local_vocab_rows(model: Model, axis: TensorAxis) -> int:
    """Of this rank, padding included."""
    return axis.shard_size(model.vocab_rows(axis.size))


class Block(nn.Module):
    def __init__(self, model: Model, axis: TensorAxis, recompute: Recompute, fp8: bool) -> None:
        super().__init__()
        self.attention_norm = build_norm(model)
        self.attention = Attention(model, axis, recompute, fp8)
        self.mlp_norm = build_norm(model)
        self.mlp = MLP(model, axis, fp8)

    def forward(self, x: Tensor, mask: Tensor | None, rotary: Rotary) -> Tensor:
        if torch.compiler.is_compiling() and x.shape[-1] <= WIDEST and not self.attention.qkv.fp8:
            x, *normed = fused_add_norm(x, None, None, self.attention_norm, self.attention.consumers)
            out = self.attention.out
            y = F.linear(self.attention.context(normed, mask, rotary), out.weight)
            x, *normed = fused_add_norm(x, y, out.bias, self.mlp_norm, self.mlp.consumers)
            return x + self.mlp(normed)
        x = x + self.attention([self.attention_norm(x)], mask, rotary)
        return x + self.mlp([self.mlp_norm(x)])
