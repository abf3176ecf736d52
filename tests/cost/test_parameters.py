"""Parameter counts equal published numbers, a real PyTorch model, and the sum of what every rank holds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.spec.strategies import models
from trimaran.cost.parameters import (
    layer_parameters,
    pipeline_total_parameters,
    stage_parameters,
    total_parameters,
    transformer_parameters,
    word_embedding_parameters,
)
from trimaran.spec import Layout, Model, presets


def test_bloom_has_176_247_billion_parameters() -> None:
    assert total_parameters(presets.model("bloom-176b")) == 176_247_271_424  # the released checkpoint's count


@pytest.mark.parametrize(("layers", "hidden", "vocab", "seq"), [(96, 12288, 50257, 2048), (24, 2048, 50257, 1024)])
def test_gpt_follows_the_textbook_formula(layers: int, hidden: int, vocab: int, seq: int) -> None:
    model = Model(layers=layers, hidden=hidden, heads=16, vocab=vocab, seq_len=seq)
    assert transformer_parameters(model) == layers * (12 * hidden**2 + 13 * hidden)
    assert total_parameters(model) == transformer_parameters(model) + vocab * hidden + seq * hidden + 2 * hidden


class Layer(nn.Module):
    """One layer as PyTorch modules, only to be counted."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kv_width = model.kv_heads * model.head_dim
        gates = 2 if model.mlp == "swiglu" else 1
        self.norms = nn.ModuleList(_norm(model) for _ in range(2))
        self.linears = nn.ModuleList(
            nn.Linear(width, out, bias=model.bias)
            for width, out in [
                (model.hidden, model.hidden),
                (model.hidden, kv_width),
                (model.hidden, kv_width),
                (model.hidden, model.hidden),
                *[(model.hidden, model.ffn_hidden)] * gates,
                (model.ffn_hidden, model.hidden),
            ]
        )


def _norm(model: Model) -> nn.Module:
    return nn.LayerNorm(model.hidden) if model.norm == "layernorm" else nn.RMSNorm(model.hidden)


@settings(max_examples=40)
@given(models())
def test_any_model_counts_as_its_pytorch_modules(model: Model) -> None:
    with torch.device("meta"):
        parts: list[nn.Module] = [Layer(model) for _ in range(model.layers)]
        parts += [nn.Embedding(model.vocab, model.hidden), _norm(model)]
        parts += [nn.Embedding(model.seq_len, model.hidden)] if model.position == "learned" else []
        parts += [_norm(model)] if model.embedding_norm else []
        parts += [] if model.tied_embeddings else [nn.Linear(model.hidden, model.vocab, bias=False)]
    assert total_parameters(model) == sum(p.numel() for part in parts for p in part.parameters())


@settings(max_examples=60)
@given(st.data(), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_the_ranks_of_all_stages_together_hold_the_model(data: st.DataObject, tp: int, pp: int) -> None:
    """Cut parts add up to the whole; what is not cut (norms, row biases, positions) is held by every rank."""
    model = data.draw(models(tp))
    layout = Layout(tp=tp, pp=pp, split="weighted")
    if pp > model.layers + 2:
        return
    held = int(stage_parameters(model, layout).sum()) * tp
    norm = model.hidden * (2 if model.norm == "layernorm" else 1)
    whole_per_layer = 2 * norm + (2 * model.hidden if model.bias else 0)
    whole = model.layers * whole_per_layer + norm * (1 + model.embedding_norm)
    whole += model.seq_len * model.hidden if model.position == "learned" else 0
    assert held - (tp - 1) * whole == pipeline_total_parameters(model, pp, tp)


def test_stages_of_bloom() -> None:
    """Twelve stages of tp 4: the ends hold five layers and an embedding each, the others six layers."""
    layout = Layout(dp=8, tp=4, pp=12, split="weighted")
    counts = stage_parameters(presets.model("bloom-176b"), layout)
    h = 14336
    layer = (12 * h * h + 7 * h) // 4 + 6 * h  # 3h + 4h of biases are cut, 2h and two norms are not
    assert counts[1] == 6 * layer
    assert counts[0] == 5 * layer + 250880 // 4 * h + 2 * h
    assert counts[-1] == 5 * layer + 250880 // 4 * h + 2 * h


def test_columns_of_tensor_ranks_give_columns_of_counts() -> None:
    model = presets.model("gpt-181b")
    tp = np.array([1, 2, 4, 8])
    assert layer_parameters(model, tp).tolist() == [layer_parameters(model, n) for n in (1, 2, 4, 8)]
    assert word_embedding_parameters(model, tp).tolist() == [word_embedding_parameters(model, n) for n in (1, 2, 4, 8)]


def test_a_vocabulary_of_250k_is_padded_to_250880_for_eight_ranks() -> None:
    assert Model(layers=1, hidden=64, heads=1, vocab=250_000).vocab_rows(8) == 250_880
