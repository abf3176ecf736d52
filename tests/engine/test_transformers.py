"""The engine's model is Hugging Face's GPT-2, BLOOM and Llama: the same weights give the same logits and gradients.

Both compute in float64, except where the library itself goes through fp32 (softmax, norms and angles of BLOOM and
Llama) and where ours does (the loss), so results agree to fp32's rounding and GPT-2's logits to float64's.
"""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.conversions import from_hf
from tests.engine.stages import random_tokens, random_weights, whole_stage
from trimaran.engine.hugging_face.families import family_of
from trimaran.spec import Model
from trimaran.spec.tensors import VOCABULARY

ROWS = 3
SHAPE = {"layers": 2, "seq_len": 16, "vocab": 131}
FP32_ROUNDING = 2e-6
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "position": "rotary"}


def theirs_of(model: Model) -> nn.Module:
    """Built by the library from the config that we would write."""
    config = AutoConfig.for_model(**family_of(model).config(model))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


GPT = {"hidden": 32, "heads": 4}
BLOOM = {"position": "alibi", "embedding_norm": True}
# The model, and how far its logits may be from theirs.
CASES = {
    "gpt2": (Model(**GPT, ffn_hidden=80, **SHAPE), 1e-12),
    "gpt2, untied": (Model(**GPT, tied_embeddings=False, **SHAPE), 1e-12),
    "bloom": (Model(**GPT, **BLOOM, **SHAPE), FP32_ROUNDING),
    "bloom, 6 heads": (Model(hidden=48, heads=6, **BLOOM, **SHAPE), FP32_ROUNDING),
    "llama, grouped": (
        Model(hidden=64, heads=8, kv_heads=2, ffn_hidden=88, rotary_base=5e5, tied_embeddings=False, **LLAMA, **SHAPE),
        FP32_ROUNDING,
    ),
    "llama, tied": (Model(**GPT, ffn_hidden=56, **LLAMA, **SHAPE), FP32_ROUNDING),
    "llama, biases": (Model(**GPT, ffn_hidden=56, bias=True, **LLAMA, **SHAPE), FP32_ROUNDING),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_every_gradient_equal_hugging_face(name: str) -> None:
    model, logit_tolerance = CASES[name]
    theirs = theirs_of(model).double().eval()  # eval: no dropout
    theirs.load_state_dict(random_weights(theirs), strict=False)  # a tied head is the embedding
    ours = whole_stage(model, padded_ours(model, dict(theirs.named_parameters())))
    tokens, targets = random_tokens(model, ROWS, seed=1), random_tokens(model, ROWS, seed=2)

    logits = theirs(input_ids=tokens, use_cache=False).logits
    found = ours.logits(ours.activations(tokens, tokens)).unflatten(0, (ROWS, -1))
    close(found, logits, logit_tolerance, "logits")

    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected.backward()
    loss = ours(tokens, tokens, targets, torch.full(tokens.shape, 1 / tokens.numel()))
    loss.backward()
    close(loss, expected, FP32_ROUNDING, "loss")
    gradients = padded_ours(model, {name: value.grad for name, value in theirs.named_parameters()})
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for parameter, value in ours.named_parameters():
        close(value.grad, gradients[parameter], FP32_ROUNDING, parameter)


def padded_ours(model: Model, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vocabulary padded with zeros, as the engine has it."""
    ours = from_hf(family_of(model), model, theirs)
    empty_rows = (0, 0, 0, model.vocab_rows(1) - model.vocab)
    return ours | {name: F.pad(ours[name], empty_rows) for name in VOCABULARY if name in ours}


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """Elementwise, relative to the largest element."""
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"{what}: {error:.1e}"
