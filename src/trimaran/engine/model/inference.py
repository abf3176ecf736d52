"""A whole model that reads tokens one after another and remembers their keys and values: for sampling, on a CPU."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trimaran.engine.checkpoint.reader import Held
from trimaran.engine.model.attention_mask import alibi_slopes
from trimaran.engine.model.transformer import Block, Stage, rotation
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model

Tell = Callable[[int, int], None]  # tensors done, of how many


def whole_model(held: Held, tell: Tell = lambda done, total: None) -> Stage:
    """In fp32, filled tensor by tensor. Rows that pad the vocabulary are never looked at."""
    model = held.model
    with torch.device("meta"):
        stage = Stage(model, TensorAxis(), range(model.layers), first=True, last=True)
    stage.to_empty(device="cpu").requires_grad_(False)
    parameters = dict(stage.named_parameters())
    for done, (name, value) in enumerate(parameters.items(), start=1):
        tensor = held.read(name)
        value[: len(tensor)].copy_(tensor)
        tell(done, len(parameters))
    return stage


class Reader:
    """One text. At most seq_len tokens: the model was trained for no more."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.model = stage, stage.model
        shape = (1, self.model.kv_heads, self.model.seq_len, self.model.head_dim)
        self.keys = [torch.empty(shape) for _ in stage.layers]
        self.values = [torch.empty(shape) for _ in stage.layers]
        self.length = 0

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> Tensor:
        """The logits of what follows these, which follow those read before."""
        stage, begin, self.length = self.stage, self.length, self.length + len(tokens)
        assert stage.embedding is not None
        assert stage.norm is not None
        places = torch.arange(begin, self.length)[None]
        x = stage.embedding(torch.tensor([list(tokens)]), places)
        turn = rotation(self.model, x, places) if self.model.position == "rotary" else None
        seen = seen_from(self.model, begin, self.length)
        for number, block in enumerate(stage.layers.values()):
            assert isinstance(block, Block)
            x = x + self._look(number, block, x, turn, seen)
            x = x + block.mlp([block.mlp_norm(x)])
        return stage.logits(stage.norm(x[-1:]))[0]

    def _look(self, number: int, block: Block, x: Tensor, turn: tuple[Tensor, Tensor] | None, seen: Tensor) -> Tensor:
        attention, begin = block.attention, self.length - len(x)
        q, k, v = attention.heads(attention.qkv(block.attention_norm(x)), len(x), turn)
        keys, values = self.keys[number], self.values[number]
        keys[:, :, begin : self.length], values[:, :, begin : self.length] = k, v
        keys, values = keys[:, :, : self.length], values[:, :, : self.length]
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=attention.shared > 1)
        return attention.out(y.transpose(1, 2).reshape(len(x), -1))


def seen_from(model: Model, begin: int, end: int) -> Tensor:
    """What tokens begin..end-1 see of tokens 0..end-1: those before them, a prefix-LM's prompt all of itself; and
    fainter with the distance where ALiBi has it so."""
    distance = torch.arange(begin, end)[:, None] - torch.arange(end)[None]
    hidden = (distance < 0) & (model.objective == "causal" or begin > 0)
    if model.position != "alibi":
        return ~hidden
    bias = -torch.tensor(alibi_slopes(model.heads))[:, None, None] * distance.abs()
    return bias.masked_fill(hidden, -torch.inf)[None]
