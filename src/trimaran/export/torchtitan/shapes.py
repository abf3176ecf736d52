"""Shapes: torchtitan takes them from a flavour in its Python code. Three are presets of ours; any other is said in a
section [shape] of the TOML file, which the module below teaches torchtitan to read."""

from typing import Any

from trimaran.export.torchtitan.config import Config
from trimaran.spec import Job, Model, presets

LLAMA3, SHAPED, FLAVOUR = "llama3", "llama3_shaped", "shape"
MODULE = "llama3_shaped"
PRESETS = {"8B": "llama3-8b", "70B": "llama3-70b", "405B": "llama3-405b"}
DEBUG = {
    "name": "debugmodel",
    "layers": 6,
    "hidden": 256,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 768,
    "vocab": 2048,
    "rotary_base": 500000.0,
}
APART = ("_flex", "_flex_attn", "_varlen", "_varlen_attn")  # flavours whose tokens attend inside their document only

# key of [shape] -> field of the Model
KEYS = {
    "name": "name",
    "n_layers": "layers",
    "dim": "hidden",
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "ffn_hidden": "ffn_hidden",
    "vocab_size": "vocab",
    "padded_vocab_size": "padded_vocab",
    "rope_theta": "rotary_base",
}
# What every llama3 of torchtitan is.
ALWAYS: dict[str, Any] = {
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "position": "rotary",
    "bias": False,
    "embedding_norm": False,
    "tied_embeddings": False,
    "objective": "causal",
}


def shipped_flavour(job: Job) -> str | None:
    """The flavour of torchtitan that is this model, if one is."""
    for flavour, preset in PRESETS.items():
        shipped = presets.model(preset)
        same = job.model.model_copy(update={"name": shipped.name, "source": shipped.source, "seq_len": shipped.seq_len})
        if same == shipped:
            if job.data.documents == "joined":
                return flavour
            return f"{flavour}_flex" if flavour == "8B" else None
    return None


def shape_keys(job: Job) -> dict[str, Any]:
    model = job.model.model_dump()
    return {key: model[field] for key, field in KEYS.items()} | {"documents_apart": job.data.documents == "apart"}


def read_shape(config: Config) -> tuple[dict[str, Any], str | None]:
    """What the file states of the Model, its sequence apart, and how documents are joined; ({}, None): not known."""
    name, flavour = config.get("model.name"), config.get("model.flavor")
    if name == SHAPED:
        stated = {field: config.take(f"shape.{key}") for key, field in KEYS.items()}
        apart = bool(config.take("shape.documents_apart"))
        return {**ALWAYS, **{field: value for field, value in stated.items() if value is not None}}, _documents(apart)
    ending = next((ending for ending in APART if flavour.endswith(ending)), "")
    plain = flavour.removesuffix(ending)
    if name == LLAMA3 and plain in PRESETS:
        known = presets.model(PRESETS[plain]).model_dump()
    elif name == LLAMA3 and plain == DEBUG["name"]:
        known = {**ALWAYS, **DEBUG}
    else:
        config.miss("model.name")
        config.miss("model.flavor")
        return {}, None
    return {field: value for field, value in known.items() if field != "seq_len"}, _documents(bool(ending))


def _documents(apart: bool) -> str:
    return "apart" if apart else "joined"


def impossible(model: Model, tp: int) -> str | None:
    """Why no llama3 of torchtitan can have this shape under tensor parallelism, as the end of a sentence."""
    if model.head_dim % 2:
        return f"its rotary positions turn pairs of channels, but a head has {model.head_dim}"
    if model.seq_len % tp:
        return f"it cuts the sequence of {model.seq_len} tokens into tp {tp} equal parts"
    return None
