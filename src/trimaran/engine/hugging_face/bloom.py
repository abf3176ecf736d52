"""BloomForCausalLM: ALiBi, a norm behind the embedding; query, key and value lie head by head, as ours do."""

from trimaran.engine.hugging_face.family import Family, alike
from trimaran.engine.model.norm import NORM_EPS

BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    architecture="BloomForCausalLM",
    base="transformer.",
    layers="transformer.h",
    modules={
        "embedding.word": alike("transformer.word_embeddings"),
        "embedding.norm": alike("transformer.word_embeddings_layernorm"),
        "attention_norm": alike("input_layernorm"),
        "attention.qkv": alike("self_attention.query_key_value"),
        "attention.out": alike("self_attention.dense"),
        "mlp_norm": alike("post_attention_layernorm"),
        "mlp.up": alike("mlp.dense_h_to_4h"),
        "mlp.down": alike("mlp.dense_4h_to_h"),
        "norm": alike("transformer.ln_f"),
        "head": alike("lm_head"),
    },
    always={"position": "alibi", "norm": "layernorm", "mlp": "gelu", "bias": True, "embedding_norm": True},
    follows={"kv_heads": lambda model: model.heads, "ffn_hidden": lambda model: 4 * model.hidden},
    keys={
        "layers": ("n_layer", "num_hidden_layers"),
        "hidden": ("hidden_size", "n_embed"),
        "heads": ("n_head", "num_attention_heads"),
        "vocab": ("vocab_size",),
        "seq_len": ("seq_length",),  # not used by the library, which knows no longest sequence, but published with it
        "tied_embeddings": ("tie_word_embeddings",),
    },
    absent={"seq_len": 2048, "tied_embeddings": True},  # BLOOM's own length
    fixed={
        "layer_norm_epsilon": (NORM_EPS, None),
        "apply_residual_connection_post_layernorm": (False, None),
    },
)
