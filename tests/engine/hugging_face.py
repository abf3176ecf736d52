"""Hugging Face's names and layouts of a model's weights, turned into ours.

Every mapping only moves numbers, so it holds for gradients as it does for weights. Ours differ in three ways: query,
key and value lie in one matrix, group by group; a gate lies beside its channel; the vocabulary is padded with zeros.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from trimaran.spec import Model

Tensors = Mapping[str, Tensor]
Reader = Callable[[Model, Tensors], dict[str, Tensor]]


def grouped_qkv(model: Model, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rows of three matrices (or biases): per key/value head its queries, then the key, then the value."""
    groups = [part.unflatten(0, (model.kv_heads, -1)) for part in (query, key, value)]
    return torch.cat(groups, dim=1).flatten(0, 1)


def gated(gate: Tensor, channel: Tensor) -> Tensor:
    return torch.stack([gate, channel], dim=1).flatten(0, 1)


def padded(model: Model, rows: Tensor) -> Tensor:
    return F.pad(rows, (0, 0, 0, model.vocab_rows(1) - len(rows)))


def both(ours: str, theirs: str, weights: Tensors) -> dict[str, Tensor]:
    """A module whose weight and bias are the same on both sides."""
    return {f"{ours}.{part}": weights[f"{theirs}.{part}"] for part in ("weight", "bias")}


def from_gpt2(model: Model, weights: Tensors) -> dict[str, Tensor]:
    """GPT2LMHeadModel keeps its matrices transposed, and all queries before all keys before all values."""
    found = {
        "embedding.word": padded(model, weights["transformer.wte.weight"]),
        "embedding.position": weights["transformer.wpe.weight"],
        **both("norm", "transformer.ln_f", weights),
    }
    for i in range(model.layers):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        found |= both(f"{ours}.attention_norm", f"{theirs}.ln_1", weights)
        found |= both(f"{ours}.mlp_norm", f"{theirs}.ln_2", weights)
        for name, part in {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}.items():
            found[f"{ours}.{name}.weight"] = weights[f"{theirs}.{part}.weight"].t()
            found[f"{ours}.{name}.bias"] = weights[f"{theirs}.{part}.bias"]
        qkv = weights[f"{theirs}.attn.c_attn.weight"].t().chunk(3)
        found[f"{ours}.attention.qkv.weight"] = grouped_qkv(model, *qkv)
        found[f"{ours}.attention.qkv.bias"] = grouped_qkv(model, *weights[f"{theirs}.attn.c_attn.bias"].chunk(3))
    return found


def from_bloom(model: Model, weights: Tensors) -> dict[str, Tensor]:
    """BloomForCausalLM lays out query, key and value as we do: it has no groups, and goes head by head."""
    found = {
        "embedding.word": padded(model, weights["transformer.word_embeddings.weight"]),
        **both("embedding.norm", "transformer.word_embeddings_layernorm", weights),
        **both("norm", "transformer.ln_f", weights),
    }
    names = {
        "attention_norm": "input_layernorm",
        "attention.qkv": "self_attention.query_key_value",
        "attention.out": "self_attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    }
    for i in range(model.layers):
        for ours, theirs in names.items():
            found |= both(f"layers.{i}.{ours}", f"transformer.h.{i}.{theirs}", weights)
    return found


def from_llama(model: Model, weights: Tensors) -> dict[str, Tensor]:
    """LlamaForCausalLM has separate query, key, value, gate and up matrices, and no biases."""
    found = {
        "embedding.word": padded(model, weights["model.embed_tokens.weight"]),
        "norm.weight": weights["model.norm.weight"],
    }
    if not model.tied_embeddings:
        found["head.weight"] = padded(model, weights["lm_head.weight"])
    for i in range(model.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        qkv = [weights[f"{theirs}.self_attn.{part}_proj.weight"] for part in "qkv"]
        gate, channel = (weights[f"{theirs}.mlp.{part}_proj.weight"] for part in ("gate", "up"))
        found |= {
            f"{ours}.attention_norm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.attention.qkv.weight": grouped_qkv(model, *qkv),
            f"{ours}.attention.out.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.mlp_norm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            f"{ours}.mlp.up.weight": gated(gate, channel),
            f"{ours}.mlp.down.weight": weights[f"{theirs}.mlp.down_proj.weight"],
        }
    return found
