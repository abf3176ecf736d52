"""FLOPs of one training step, by named formula: the same step prints as 150, 144, 113 or 112 TFLOP/s.

A GEMM of M x K by K x N is 2MKN operations; the backward pass costs twice the forward pass.
Tokens T = batch x seq_len; l layers, h hidden, s seq_len, V rows of the (padded) vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimaran.cost.parameters import (
    attention_matrix_parameters,
    mlp_matrix_parameters,
    total_parameters,
    transformer_parameters,
)
from trimaran.spec import Model
from trimaran.spec.trainer import Recompute

FORWARD_AND_BACKWARD = 3  # in units of one forward pass


@dataclass(frozen=True)
class TrainingStep:
    """One optimizer step: the model, how many samples, and what changes its FLOPs."""

    model: Model
    batch: Any  # samples; a number or a column
    tp: int = 1  # only for the padding of the vocabulary
    recompute: Recompute = "none"

    @property
    def tokens(self) -> Any:
        return self.batch * self.model.seq_len

    @property
    def vocab_rows(self) -> int:
        return self.model.vocab_rows(self.tp)

    @property
    def passes(self) -> int:
        """BigScience's factor f: 4 forward-equivalents with full recompute, else 3."""
        return 4 if self.recompute == "full" else 3


def layer_forward_flops_per_token(model: Model) -> int:
    """The GEMMs of one layer; true for any ffn_hidden, gate and number of key/value heads."""
    return 2 * (attention_matrix_parameters(model) + mlp_matrix_parameters(model))


def attention_forward_flops_per_token(model: Model) -> int:
    """Scores, and their GEMM with the values, over all s positions: 2 x 2sh."""
    return 4 * model.seq_len * model.hidden


def logits_forward_flops_per_token(step: TrainingStep) -> int:
    return 2 * step.vocab_rows * step.model.hidden


def model_flops(step: TrainingStep) -> Any:
    """True forward and backward matrix and attention FLOPs, attention counted in full."""
    model = step.model
    layer = layer_forward_flops_per_token(model) + attention_forward_flops_per_token(model)
    return FORWARD_AND_BACKWARD * step.tokens * (model.layers * layer + logits_forward_flops_per_token(step))


def model_causal_flops(step: TrainingStep) -> Any:
    """As model_flops, but a causal mask needs half of the attention."""
    saved = step.model.layers * attention_forward_flops_per_token(step.model) / 2
    return model_flops(step) - FORWARD_AND_BACKWARD * step.tokens * saved


def hardware_flops(step: TrainingStep) -> Any:
    """What the device computes: full recompute repeats the layers, selective the attention, neither the logits."""
    model = step.model
    attention = attention_forward_flops_per_token(model)
    repeated = {"none": 0, "selective": attention, "full": layer_forward_flops_per_token(model) + attention}
    return model_flops(step) + step.tokens * model.layers * repeated[step.recompute]


def bigscience_approx_flops(step: TrainingStep) -> Any:
    """f·2·P·T with P the transformer layers only: BigScience's tables up to 02-20."""
    return step.passes * 2 * transformer_parameters(step.model) * step.tokens


def bigscience_exact_flops(step: TrainingStep) -> Any:
    """24·f·B·s·l·h²·(1 + s/6h + V/16lh): BigScience's tables from 02-21 on, Megatron-LM's paper.

    Kept as printed: it assumes ffn = 4h, and its V/16lh is right only at f = 4 (see model_flops for the truth).
    """
    model = step.model
    h, layers = model.hidden, model.layers
    per_token = (32 if model.mlp == "swiglu" else 24) * step.passes * layers * h**2
    return per_token * step.tokens * (1 + model.seq_len / (6 * h) + step.vocab_rows / (16 * layers * h))


def six_n_flops(step: TrainingStep) -> Any:
    """6·N·T with N all parameters: the rule of thumb of the scaling-law papers."""
    return 6 * total_parameters(step.model, step.tp) * step.tokens


def six_n_attention_flops(step: TrainingStep) -> Any:
    """6·N·T + 12·l·h·s·T: what PaLM, nanoGPT and torchtitan count."""
    model = step.model
    return six_n_flops(step) + 12 * model.layers * model.hidden * model.seq_len * step.tokens


FORMULAS: dict[str, Callable[[TrainingStep], Any]] = {
    "model": model_flops,
    "model-causal": model_causal_flops,
    "hardware": hardware_flops,
    "bigscience-exact": bigscience_exact_flops,
    "bigscience-approx": bigscience_approx_flops,
    "6n": six_n_flops,
    "6n-attention": six_n_attention_flops,
}


def tflops_per_device(flops: Any, seconds: Any, devices: Any) -> Any:
    return flops / (seconds * devices * 1e12)
