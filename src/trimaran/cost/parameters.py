"""How many parameters: of the model, of a pipeline stage, of one tensor rank. Counts, not bytes.

Where `tp` appears the result is what one tensor rank holds; tp may be a number or a column.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.spec import Layout, Model, stage_layers


def attention_matrix_parameters(model: Model) -> int:
    """Weights of query, key, value and output projections; grouped heads shrink key and value."""
    kv_width = model.kv_heads * model.head_dim
    return 2 * model.hidden**2 + 2 * model.hidden * kv_width


def mlp_matrix_parameters(model: Model) -> int:
    """Two matrices, or three with a gate."""
    return (3 if model.mlp == "swiglu" else 2) * model.hidden * model.ffn_hidden


def norm_parameters(model: Model) -> int:
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def layer_parameters(model: Model, tp: Any = 1) -> Any:
    """One transformer layer on one tensor rank: matrices are cut, norms and row-parallel biases are not."""
    cut = attention_matrix_parameters(model) + mlp_matrix_parameters(model)
    whole = 2 * norm_parameters(model)
    if model.bias:
        kv_width = model.kv_heads * model.head_dim
        cut += model.hidden + 2 * kv_width  # biases of query, key, value
        cut += model.ffn_hidden * (2 if model.mlp == "swiglu" else 1)
        whole += 2 * model.hidden  # biases of the two row-parallel outputs
    return cut // tp + whole


def word_embedding_parameters(model: Model, tp: Any = 1) -> Any:
    """Rows are padded to a multiple of 128 x tp, then cut."""
    rows = model.padded_vocab or -(-model.vocab // (128 * tp)) * (128 * tp)
    return rows // tp * model.hidden


def first_stage_extra(model: Model, tp: Any = 1) -> Any:
    """What the first stage holds beside its layers: word and position embeddings, their norm."""
    positions = model.seq_len * model.hidden if model.position == "learned" else 0
    return word_embedding_parameters(model, tp) + positions + (norm_parameters(model) if model.embedding_norm else 0)


def last_stage_extra(model: Model, tp: Any = 1, *, alone: bool) -> Any:
    """The final norm and the head. `alone`: this stage is not the first too, so tied embeddings are copied."""
    needs_matrix = alone or not model.tied_embeddings
    return norm_parameters(model) + (word_embedding_parameters(model, tp) if needs_matrix else 0)


def transformer_parameters(model: Model) -> int:
    """The layers only, without embeddings and final norm: l(12h²+13h) for a plain GPT."""
    return int(model.layers * layer_parameters(model))


def total_parameters(model: Model, tp: int | None = None) -> int:
    """Each parameter once, with the vocabulary as published, or padded as tp ranks hold it when tp is given."""
    rows = model.padded_vocab or model.vocab if tp is None else model.vocab_rows(tp)
    whole = model.model_copy(update={"padded_vocab": rows})
    return int(transformer_parameters(whole) + first_stage_extra(whole) + last_stage_extra(whole, alone=False))


def pipeline_total_parameters(model: Model, pp: int, tp: int = 1) -> int:
    """What trainers print as they sum over stages: with a pipeline a tied embedding is held, and counted, twice."""
    total = total_parameters(model, tp)
    twice = pp > 1 and model.tied_embeddings
    return total + (model.vocab_rows(tp) * model.hidden if twice else 0)


def stage_parameters(model: Model, layout: Layout) -> npt.NDArray[np.int64]:
    """Parameters of every stage, in model order, on one tensor rank."""
    layers = stage_layers(model.layers, layout)
    if layers is None:
        raise ValueError(f"{model.layers} layers do not split over {layout.stages} stages as {layout.split}")
    counts: npt.NDArray[np.int64] = np.array(layers, dtype=np.int64) * layer_parameters(model, layout.tp)
    counts[0] += first_stage_extra(model, layout.tp)
    counts[-1] += last_stage_extra(model, layout.tp, alone=layout.stages > 1)
    return counts
