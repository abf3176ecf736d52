"""The engine's model is Hugging Face's GPT-2, BLOOM and Llama: the same weights give the same logits and gradients.

Both compute in float64, except where the library itself goes through fp32 (softmax, norms and angles of BLOOM and
Llama) and where ours does (the loss), so results agree to fp32's rounding and GPT-2's logits to float64's.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.engine.hugging_face import Reader, Tensors, from_bloom, from_gpt2, from_llama
from tests.engine.stages import random_tokens, random_weights, whole_stage
from trimaran.spec import Model

ROWS = 3
SHAPE = {"layers": 2, "seq_len": 16, "vocab": 131}
FP32_ROUNDING = 2e-6
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "position": "rotary"}


def gpt2(model: Model) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.vocab,
            n_positions=model.seq_len,
            n_embd=model.hidden,
            n_layer=model.layers,
            n_head=model.heads,
            n_inner=model.ffn_hidden,
            activation_function="gelu_new",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="eager",
        )
    )


def bloom(model: Model) -> nn.Module:
    return BloomForCausalLM(
        BloomConfig(
            vocab_size=model.vocab,
            hidden_size=model.hidden,
            n_layer=model.layers,
            n_head=model.heads,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            attn_implementation="eager",
        )
    )


def llama(model: Model) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.vocab,
            hidden_size=model.hidden,
            intermediate_size=model.ffn_hidden,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads,
            max_position_embeddings=model.seq_len,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": model.rotary_base},
            tie_word_embeddings=model.tied_embeddings,
            attn_implementation="eager",
        )
    )


CASES = {
    "gpt2": (gpt2, from_gpt2, Model(hidden=32, heads=4, ffn_hidden=80, **SHAPE), 1e-12),
    "bloom": (bloom, from_bloom, Model(hidden=32, heads=4, position="alibi", embedding_norm=True, **SHAPE), None),
    "bloom, 6 heads": (
        bloom,
        from_bloom,
        Model(hidden=48, heads=6, position="alibi", embedding_norm=True, **SHAPE),
        None,
    ),
    "llama, grouped": (
        llama,
        from_llama,
        Model(hidden=64, heads=8, kv_heads=2, ffn_hidden=88, rotary_base=5e5, tied_embeddings=False, **LLAMA, **SHAPE),
        None,
    ),
    "llama, tied": (llama, from_llama, Model(hidden=32, heads=4, ffn_hidden=56, **LLAMA, **SHAPE), None),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_every_gradient_equal_hugging_face(name: str) -> None:
    build, read, model, logit_tolerance = CASES[name]
    theirs = build(model).double().train()
    theirs.load_state_dict(random_weights(theirs), strict=False)  # a tied head is the embedding
    ours = whole_stage(model, read(model, dict(theirs.named_parameters())))
    tokens, targets = random_tokens(model, ROWS, seed=1), random_tokens(model, ROWS, seed=2)

    logits = theirs(input_ids=tokens, use_cache=False).logits
    found = ours.logits(ours.activations(tokens, tokens)).unflatten(0, (ROWS, -1))
    close(found, logits, logit_tolerance or FP32_ROUNDING, "logits")

    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected.backward()
    loss = ours(tokens, tokens, targets, torch.full(tokens.shape, 1 / tokens.numel()))
    loss.backward()
    close(loss, expected, FP32_ROUNDING, "loss")
    gradients = mapped_gradients(read, model, theirs)
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for parameter, value in ours.named_parameters():
        close(value.grad, gradients[parameter], FP32_ROUNDING, parameter)


def mapped_gradients(read: Reader, model: Model, theirs: nn.Module) -> Tensors:
    return read(model, {name: value.grad for name, value in theirs.named_parameters()})


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """Everywhere, relative to the largest number."""
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"{what}: {error:.1e}"
