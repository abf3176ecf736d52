"""Every tensor of a model by name: its shape and how tensor parallelism cuts it. What cost.parameters counts, listed.

Names are the engine's and do not depend on the layout. The exact bytes of one rank follow from this list, because
sharding rounds up tensor by tensor.
"""

from dataclasses import dataclass

from trimaran.spec.layout import Layout, stage_layers
from trimaran.spec.model import Model

VOCABULARY = ("embedding.word", "head.weight")  # the tensors with padded rows


@dataclass(frozen=True)
class NamedTensor:
    name: str
    shape: tuple[int, ...]  # of the whole tensor, the vocabulary padded for tp ranks
    cut: int | None = None  # the dimension that tensor ranks divide; None: every one of them has all of it

    def local_shape(self, tp: int) -> tuple[int, ...]:
        return tuple(size // tp if dim == self.cut else size for dim, size in enumerate(self.shape))


def stage_tensors(model: Model, layout: Layout, stage: int) -> list[NamedTensor]:
    """Of one pipeline stage, in the model's order. A tied embedding that first and last stage share is in both."""
    layers = stage_layers(model.layers, layout)
    assert layers is not None  # a Job whose layers do not split does not exist
    begin = sum(layers[:stage])
    tensors = embedding_tensors(model, layout.tp) if stage == 0 else []
    for number in range(begin, begin + layers[stage]):
        tensors += layer_tensors(model, f"layers.{number}")
    if stage == layout.stages - 1:
        tensors += norm_tensors(model, "norm")
        if layout.stages > 1 or not model.tied_embeddings:
            tensors.append(NamedTensor("head.weight", (model.vocab_rows(layout.tp), model.hidden), 0))
    return tensors


def embedding_tensors(model: Model, tp: int) -> list[NamedTensor]:
    tensors = [NamedTensor("embedding.word", (model.vocab_rows(tp), model.hidden), 0)]
    if model.position == "learned":
        tensors.append(NamedTensor("embedding.position", (model.seq_len, model.hidden)))
    return tensors + (norm_tensors(model, "embedding.norm") if model.embedding_norm else [])


def layer_tensors(model: Model, name: str) -> list[NamedTensor]:
    hidden, qkv_width = model.hidden, (model.heads + 2 * model.kv_heads) * model.head_dim
    up_width = model.ffn_hidden * (2 if model.mlp == "swiglu" else 1)
    return [
        *norm_tensors(model, f"{name}.attention_norm"),
        *_linear(model, f"{name}.attention.qkv", qkv_width, hidden, cut=0),
        *_linear(model, f"{name}.attention.out", hidden, hidden, cut=1),
        *norm_tensors(model, f"{name}.mlp_norm"),
        *_linear(model, f"{name}.mlp.up", up_width, hidden, cut=0),
        *_linear(model, f"{name}.mlp.down", hidden, model.ffn_hidden, cut=1),
    ]


def norm_tensors(model: Model, name: str) -> list[NamedTensor]:
    parts = ("weight", "bias") if model.norm == "layernorm" else ("weight",)
    return [NamedTensor(f"{name}.{part}", (model.hidden,)) for part in parts]


def _linear(model: Model, name: str, outputs: int, inputs: int, cut: int) -> list[NamedTensor]:
    weight = NamedTensor(f"{name}.weight", (outputs, inputs), cut)
    # A row layer's bias is added to the sum over the ranks, so it is not cut.
    return [weight, NamedTensor(f"{name}.bias", (outputs,), 0 if cut == 0 else None)] if model.bias else [weight]
