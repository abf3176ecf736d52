"""GPT2LMHeadModel: learned positions, matrices transposed, all queries before all keys before all values."""

from trimaran.engine.hugging_face.family import Family, alike
from trimaran.engine.hugging_face.moves import joined, transposed
from trimaran.engine.model.norm import NORM_EPS

GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer.",
    layers="transformer.h",
    modules={
        "embedding.word": alike("transformer.wte"),
        "embedding.position": alike("transformer.wpe"),
        "attention_norm": alike("ln_1"),
        "attention.qkv": (("attn.c_attn",), joined),
        "attention.out": (("attn.c_proj",), transposed),
        "mlp_norm": alike("ln_2"),
        "mlp.up": (("mlp.c_fc",), transposed),
        "mlp.down": (("mlp.c_proj",), transposed),
        "norm": alike("transformer.ln_f"),
        "head": alike("lm_head"),
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
