"""Model shapes: torchtitan takes them from a flavour in its Python code. Three flavours are presets of ours; any other
shape goes into a section [shape] of the TOML file, read by a Python module that is exported beside it."""

from typing import Any

from trimaran.export.flags import Fields
from trimaran.export.torchtitan.config import TitanConfig
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
DOCUMENT_MASKED = ("_flex", "_flex_attn", "_varlen", "_varlen_attn")  # flavours with attention inside documents only

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
# Fixed for every llama3 of torchtitan.
LLAMA3_FIELDS: dict[str, Any] = {
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


def read_shape(config: TitanConfig) -> Fields:
    """What the file states of the Model but its seq_len, and of data.documents; nothing for an unknown model."""
    name, flavour = config.get("model.name"), config.get("model.flavor")
    if name == SHAPED:
        stated = {field: config.take(f"shape.{key}") for key, field in KEYS.items()}
        known = LLAMA3_FIELDS | {field: value for field, value in stated.items() if value is not None}
        return _model_fields(known, documents_apart=config.take("shape.documents_apart"))
    ending = next((ending for ending in DOCUMENT_MASKED if flavour.endswith(ending)), "")
    plain = flavour.removesuffix(ending)
    if name == LLAMA3 and plain in PRESETS:
        known = presets.model(PRESETS[plain]).model_dump()
    elif name == LLAMA3 and plain == DEBUG["name"]:
        known = {**LLAMA3_FIELDS, **DEBUG}
    else:
        config.report("model.name")
        config.report("model.flavor")
        return {}
    known.pop("seq_len", None)  # the file has its own
    return _model_fields(known, documents_apart=ending)


def _model_fields(model: dict[str, Any], documents_apart: object) -> Fields:
    documents = "apart" if documents_apart else "joined"
    return {**{f"model.{field}": value for field, value in model.items()}, "data.documents": documents}


def why_impossible(model: Model, tp: int) -> str | None:
    """Why no llama3 of torchtitan can have this shape under tensor parallelism, as the end of a sentence."""
    if model.head_dim % 2:
        return f"its rotary positions rotate pairs of channels, but head_dim is {model.head_dim}"
    if model.seq_len % tp:
        return f"its sequence parallelism needs the {model.seq_len} tokens to be divisible by tp {tp}"
    return None


# The Python module that goes beside the TOML file where torchtitan has no flavour of the Job's shape.
MODULE_TEXT = '''"""A llama3 of any shape for torchtitan 0.2.2: the section [shape] of the TOML file says which.

Written by `trimaran export`. torchtitan imports it by the name in job.custom_config_module.
"""

from dataclasses import dataclass, field, replace

from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec
from torchtitan.models.llama3.model.args import RoPEScalingArgs
from torchtitan.protocols.train_spec import register_train_spec


@dataclass
class Shape:
    name: str = ""
    n_layers: int = 0
    dim: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    ffn_hidden: int = 0
    """Width of the MLP, exactly."""
    vocab_size: int = 0
    padded_vocab_size: int | None = None
    """Rows of the embedding where there are more than tokens."""
    rope_theta: float = 10000.0
    documents_apart: bool = False
    """Tokens attend only inside their own document."""


@dataclass
class JobConfig:
    """Sections that torchtitan adds to its own."""

    shape: Shape = field(default_factory=Shape)


@dataclass
class ShapedArgs(TransformerModelArgs):
    def update_from_config(self, job_config, **kwargs):
        shape = job_config.shape
        for name in ("n_layers", "dim", "n_heads", "n_kv_heads", "rope_theta"):
            setattr(self, name, getattr(shape, name))
        self.vocab_size = shape.padded_vocab_size or shape.vocab_size
        # torchtitan widens by the multiplier, drops the fraction and rounds up to the multiple: half a unit is safe.
        self.multiple_of = shape.ffn_hidden
        self.ffn_dim_multiplier = (shape.ffn_hidden + 0.5) / int(8 * shape.dim / 3)
        if shape.documents_apart:
            self.attn_type, self.attn_mask_type = "flex", "block_causal"
        super().update_from_config(job_config, **kwargs)


# A factor of 1 leaves the rotary angles as they are; torchtitan's own flavours scale them as Llama 3.1 does.
ARGS = ShapedArgs(rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0))
register_train_spec("llama3_shaped", replace(get_train_spec(), model_args={"shape": ARGS}))
'''
