"""The families of `transformers` that Trimaran's model covers, and to which a Model or a config belongs."""

from collections.abc import Mapping
from typing import Any

from trimaran.engine.hugging_face.family import Family, fused_qkv, gate_up, renamed, separate_qkv, transposed
from trimaran.engine.model.norm import NORM_EPS
from trimaran.spec import Mistake, Model

# GPT2LMHeadModel: learned positions, matrices transposed, all queries before all keys before all values.
GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer.",
    layers="transformer.h",
    modules={
        "embedding.word": renamed("transformer.wte"),
        "embedding.position": renamed("transformer.wpe"),
        "attention_norm": renamed("ln_1"),
        "attention.qkv": (("attn.c_attn",), fused_qkv),
        "attention.out": (("attn.c_proj",), transposed),
        "mlp_norm": renamed("ln_2"),
        "mlp.up": (("mlp.c_fc",), transposed),
        "mlp.down": (("mlp.c_proj",), transposed),
        "norm": renamed("transformer.ln_f"),
        "head": renamed("lm_head"),
    },
    always={"position": "learned", "norm": "layernorm", "mlp": "gelu", "bias": True, "embedding_norm": False},
    follows={"kv_heads": lambda model: model.heads},
    keys={
        "layers": ("n_layer", "num_hidden_layers"),
        "hidden": ("n_embd", "hidden_size"),
        "heads": ("n_head", "num_attention_heads"),
        "ffn_hidden": ("n_inner",),
        "vocab": ("vocab_size",),
        "seq_len": ("n_positions", "max_position_embeddings", "n_ctx"),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    absent={"ffn_hidden": None, "tied_embeddings": True},
    fixed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh", None),
        "layer_norm_epsilon": (NORM_EPS, None),
        "scale_attn_weights": (True, None),
        "scale_attn_by_inverse_layer_idx": (False, None),
        "add_cross_attention": (False, None),
    },
)

# BloomForCausalLM: ALiBi, a norm after the embedding; query, key and value are interleaved head by head, as ours are.
BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    architecture="BloomForCausalLM",
    base="transformer.",
    layers="transformer.h",
    modules={
        "embedding.word": renamed("transformer.word_embeddings"),
        "embedding.norm": renamed("transformer.word_embeddings_layernorm"),
        "attention_norm": renamed("input_layernorm"),
        "attention.qkv": renamed("self_attention.query_key_value"),
        "attention.out": renamed("self_attention.dense"),
        "mlp_norm": renamed("post_attention_layernorm"),
        "mlp.up": renamed("mlp.dense_h_to_4h"),
        "mlp.down": renamed("mlp.dense_4h_to_h"),
        "norm": renamed("transformer.ln_f"),
        "head": renamed("lm_head"),
    },
    always={"position": "alibi", "norm": "layernorm", "mlp": "gelu", "bias": True, "embedding_norm": True},
    follows={"kv_heads": lambda model: model.heads, "ffn_hidden": lambda model: 4 * model.hidden},
    keys={
        "layers": ("n_layer", "num_hidden_layers"),
        "hidden": ("hidden_size", "n_embed"),
        "heads": ("n_head", "num_attention_heads"),
        "vocab": ("vocab_size",),
        "seq_len": ("seq_length",),  # the library ignores it, but the published config has it
        "tied_embeddings": ("tie_word_embeddings",),
    },
    absent={"seq_len": 2048, "tied_embeddings": True},  # BLOOM's own sequence length
    fixed={
        "layer_norm_epsilon": (NORM_EPS, None),
        "apply_residual_connection_post_layernorm": (False, None),
    },
)

# LlamaForCausalLM: rotary positions, RMSNorm; separate query, key, value, gate and up matrices.
LLAMA = Family(
    name="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    base="model.",
    layers="model.layers",
    modules={
        "embedding.word": renamed("model.embed_tokens"),
        "attention_norm": renamed("input_layernorm"),
        "attention.qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), separate_qkv),
        "attention.out": renamed("self_attn.o_proj"),
        "mlp_norm": renamed("post_attention_layernorm"),
        "mlp.up": (("mlp.gate_proj", "mlp.up_proj"), gate_up),
        "mlp.down": renamed("mlp.down_proj"),
        "norm": renamed("model.norm"),
        "head": renamed("lm_head"),
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

FAMILIES = (GPT2, BLOOM, LLAMA)
BY_POSITION = {family.always["position"]: family for family in FAMILIES}
BY_TYPE = {family.model_type: family for family in FAMILIES}


def family_of(model: Model) -> Family:
    """The position embedding decides; everything else must match."""
    family = BY_POSITION[model.position]
    difference = family.difference(model)
    if difference:
        raise Mistake(
            f"transformers has no model like {model.name}: with {model.position} positions it would be {family.name},"
            f" but its {difference}. What it has: learned positions as GPT-2, alibi as BLOOM, rotary as Llama."
        )
    return family


def family_of_config(config: Mapping[str, Any], what: str) -> Family:
    family = BY_TYPE.get(str(config.get("model_type")))
    if family is None:
        raise Mistake(
            f"{what} is of model_type {config.get('model_type')!r}, but only {', '.join(BY_TYPE)} have a counterpart"
            " in Trimaran."
        )
    return family
