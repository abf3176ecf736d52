"""Model: the shape of a decoder-only transformer, as its paper would state it."""

from collections.abc import Collection, Mapping
from math import isqrt
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import FfnWidth, Hyperparameter, Layers, SequenceLength, Vocabulary, Width
from trimaran.spec.mistake import shortened

DERIVED = {"ffn_hidden": "hidden", "kv_heads": "heads"}  # fields that default to a function of another


class Model(Spec):
    name: str = "unnamed"
    layers: Layers
    hidden: Width
    heads: Width
    kv_heads: Width = Field(description="Key/value heads; fewer than heads is grouped-query attention.")
    ffn_hidden: FfnWidth = Field(description="Width of the MLP; 4 x hidden unless stated.")
    vocab: Vocabulary = Field(50257, description="Tokens in the vocabulary, before padding.")
    padded_vocab: Vocabulary | None = Field(
        None, description="Rows of the embedding matrix where fixed by hand; otherwise the next multiple of 128 x tp."
    )
    seq_len: SequenceLength = 2048
    mlp: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "alibi", "rotary"] = "learned"
    rotary_base: Hyperparameter = Field(10000.0, description="Base (theta) of the rotary embedding; Llama 3: 500000.")
    bias: bool = Field(True, description="Biases on the linear layers (GPT and BLOOM have them, Llama has none).")
    embedding_norm: bool = Field(False, description="A norm right after the token embedding (BLOOM).")
    tied_embeddings: bool = Field(True, description="The LM head shares the token embedding's weight.")
    objective: Literal["causal", "prefix"] = "causal"
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        """Defaults derived from other fields. They are stored, so a dumped Model is complete."""
        if isinstance(values, dict):
            values = dict(values)
            if values.get("kv_heads") is None and "heads" in values:
                values["kv_heads"] = values["heads"]
            if values.get("ffn_hidden") is None and isinstance(values.get("hidden"), int):
                if values.get("mlp") == "swiglu":
                    raise ValueError(
                        "a swiglu MLP has no customary width, so ffn_hidden must be given"
                        f" (Llama uses about 3.5 x hidden = {shortened(7 * values['hidden'] // 2)})."
                    )
                values["ffn_hidden"] = 4 * values["hidden"]
            if values.get("bias") is None:
                values["bias"] = values.get("norm") != "rmsnorm"
        return values

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if self.hidden % self.heads:
            near = _nearest_divisor(self.hidden, self.heads)
            raise ValueError(
                f"hidden {self.hidden} does not divide into {self.heads} heads"
                f" ({self.hidden}/{self.heads} = {self.hidden / self.heads:.2f});"
                f" the nearest that works: {near} heads of {self.hidden // near}."
            )
        if self.heads % self.kv_heads:
            near = _nearest_divisor(self.heads, self.kv_heads)
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly;"
                f" the nearest that works: kv_heads {near}."
            )
        if self.padded_vocab is not None and self.padded_vocab < self.vocab:
            raise ValueError(
                f"padded_vocab {self.padded_vocab} is smaller than vocab {self.vocab};"
                f" the nearest that works: {self.vocab}."
            )
        if self.position == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"rotary positions rotate pairs of channels, but {self.heads} heads of hidden {self.hidden}"
                f" have an odd dimension {self.head_dim}."
            )
        return self

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def vocab_rows(self, tp: int) -> int:
        """Rows of the embedding matrix: padded so that every tensor-parallel rank gets a multiple of 128."""
        if self.padded_vocab is not None:
            return self.padded_vocab
        return round_up(self.vocab, 128 * tp)


def drop_derived(values: Mapping[str, Any], overridden: Collection[str]) -> dict[str, Any]:
    """A dumped Model without the fields derived from those about to be overridden, unless they are overridden too."""
    return {key: item for key, item in values.items() if key in overridden or DERIVED.get(key) not in overridden}


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple at or above a number."""
    return -(-number // multiple) * multiple


def _nearest_divisor(number: int, wanted: int) -> int:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return min((*small, *(number // d for d in small)), key=lambda d: abs(d - wanted))
