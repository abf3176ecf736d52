"""The Python module that goes beside the TOML file where torchtitan has no flavour of the Job's shape."""

TEXT = '''"""A llama3 of any shape for torchtitan 0.2.2: the section [shape] of the TOML file says which.

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


# A factor of 1 leaves the rotary angles as they are; torchtitan's own flavours stretch the long ones as Llama 3.1 does.
ARGS = ShapedArgs(rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0))
register_train_spec("llama3_shaped", replace(get_train_spec(), model_args={"shape": ARGS}))
'''
