"""What our own engine decides by itself: it reads the decisions here, and so does the cost model that predicts it."""

from typing import Any

import numpy as np

PAGE_MIB = 12  # of GPU memory mapped at once: the smallest that PyTorch (over 10) and CUDA (even ones) allow
# torchao quantizes the moments of tensors of at least so many elements, and of whole blocks; others stay in fp32.
LEAST_8BIT, BLOCK_8BIT = 4096, 256
CHUNK_LOGITS = 2**27  # computed at once: half a GiB in fp32, enough for full-speed GEMMs, small beside a model


def loss_chunk_tokens(vocab_rows: Any) -> Any:
    """Tokens whose logits exist at the same time, with so many rows of the vocabulary on a rank."""
    return np.maximum(128, CHUNK_LOGITS // vocab_rows // 128 * 128)


def layers_compile(tp: Any, pp: Any, zero_bubble: Any) -> Any:
    """Whether a GPU's layers are compiled: not with tensor parallelism, which runs collectives inside a layer, nor with
    a zero-bubble schedule, which splits a layer's backward pass."""
    return (tp == 1) & ((pp == 1) | np.logical_not(zero_bubble))
