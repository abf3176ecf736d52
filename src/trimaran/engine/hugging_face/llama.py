"""LlamaForCausalLM: rotary positions, RMSNorm; separate query, key, value, gate and up matrices."""

from trimaran.engine.hugging_face.family import Family, alike
from trimaran.engine.hugging_face.moves import gated, grouped
from trimaran.engine.model.norm import NORM_EPS

LLAMA = Family(
    name="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    base="model.",
    layers="model.layers",
    modules={
        "embedding.word": alike("model.embed_tokens"),
        "attention_norm": alike("input_layernorm"),
        "attention.qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), grouped),
        "attention.out": alike("self_attn.o_proj"),
        "mlp_norm": alike("post_attention_layernorm"),
        "mlp.up": (("mlp.gate_proj", "mlp.up_proj"), gated),
        "mlp.down": alike("mlp.down_proj"),
        "norm": alike("model.norm"),
        "head": alike("lm_head"),
    },
    always={"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "embedding_norm": False},
    follows={},
    keys={
        "layers": ("num_hidden_layers",),
        "hidden": ("hidden_size",),
        "heads": ("num_attention_heads",),
        "kv_heads": ("num_key_value_heads",),
        "ffn_hidden": ("intermediate_size",),
        "vocab": ("vocab_size",),
        "seq_len": ("max_position_embeddings",),
        "rotary_base": ("rope_theta", "rope_parameters.rope_theta"),
        "bias": ("attention_bias",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    absent={"kv_heads": None, "rotary_base": 10000.0, "bias": False, "tied_embeddings": False},
    derived={
        "head_dim": lambda model: model.head_dim,
        "mlp_bias": lambda model: model.bias,
        # Version 5 of the library reads this, version 4 reads rope_theta.
        "rope_parameters": lambda model: {"rope_theta": model.rotary_base, "rope_type": "default"},
    },
    fixed={"hidden_act": ("silu", None), "rms_norm_eps": (NORM_EPS,), "rope_scaling": (None,)},
)
