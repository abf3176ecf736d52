"""Generation on a CPU: a whole model with a key/value cache, and tokens sampled from it one after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimaran.engine.checkpoint.reader import SavedCheckpoint
from trimaran.engine.hugging_face.folder import HfFolder
from trimaran.engine.model.attention import Rotary, rotary_cos_sin
from trimaran.engine.model.attention_mask import alibi_slopes
from trimaran.engine.model.transformer import Block, Stage
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model

SMALL_PARAMETERS = 20_000_000


@dataclass(frozen=True)
class SamplingOptions:
    temperature: float = 0.8  # 0: greedy
    top_k: int = 50  # 0: all


def load_model(
    source: SavedCheckpoint | HfFolder, progress: Callable[[int, int], None] = lambda done, total: None
) -> Stage:
    """In fp32, tensor by tensor. Rows that pad the vocabulary stay empty and are never read."""
    model = source.model
    with torch.device("meta"):
        stage = Stage(model, TensorAxis(), range(model.layers), first=True, last=True)
    stage.to_empty(device="cpu").requires_grad_(False)
    parameters = dict(stage.named_parameters())
    for done, (name, value) in enumerate(parameters.items(), start=1):
        tensor = source.read(name)
        value[: len(tensor)].copy_(tensor)
        progress(done, len(parameters))
    return stage


def limit_threads(stage: Stage) -> None:
    """One thread for a small model: its GEMMs are too short to be split, and on a busy machine threads wait for each
    other (`tiny`: 205 tokens per second with one, 11 with two on two cores that others use)."""
    if sum(value.numel() for value in stage.parameters()) < SMALL_PARAMETERS:
        torch.set_num_threads(1)


def seeded_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def generate(
    stage: Stage, prompt: Sequence[int], options: SamplingOptions, generator: torch.Generator, end: int | None = None
) -> Iterator[int]:
    """Endless, unless the token `end` comes. At the model's sequence length the older half of the text is dropped."""
    longest = stage.model.seq_len
    context = list(prompt[-longest:])
    decoder, new = CachedDecoder(stage), context
    while True:
        token = sample_token(decoder.decode(new), options, generator)
        yield token
        if token == end:
            return
        context.append(token)
        new = [token]
        if len(context) > longest:
            context = context[-(longest + 1) // 2 :]
            decoder, new = CachedDecoder(stage), context


def sample_token(logits: Tensor, options: SamplingOptions, generator: torch.Generator) -> int:
    if options.temperature == 0:
        return int(logits.argmax())
    values, tokens = logits.topk(min(options.top_k or len(logits), len(logits)))
    # The largest is subtracted before the division, which would overflow at a tiny temperature.
    probabilities = ((values - values[0]) / options.temperature).softmax(0)
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


class CachedDecoder:
    """One sequence, with the keys and values of its tokens so far: at most seq_len, as the model was trained."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.model = stage, stage.model
        shape = (1, self.model.kv_heads, self.model.seq_len, self.model.head_dim)
        self.keys = [torch.empty(shape) for _ in stage.layers]
        self.values = [torch.empty(shape) for _ in stage.layers]
        self.length = 0

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int]) -> Tensor:
        """Append these tokens; the logits of the next one."""
        stage, begin, self.length = self.stage, self.length, self.length + len(tokens)
        assert stage.embedding is not None
        assert stage.norm is not None
        positions = torch.arange(begin, self.length)[None]
        x = stage.embedding(torch.tensor([list(tokens)]), positions)
        rotary = rotary_cos_sin(self.model, x, positions)
        mask = cached_mask(self.model, begin, self.length)
        for number, block in enumerate(stage.layers.values()):
            assert isinstance(block, Block)
            x = x + self._attention(number, block, x, mask, rotary)
            x = x + block.mlp([block.mlp_norm(x)])
        return stage.logits(stage.norm(x[-1:]))[0]

    def _attention(self, number: int, block: Block, x: Tensor, mask: Tensor, rotary: Rotary) -> Tensor:
        attention, begin = block.attention, self.length - len(x)
        q, k, v = attention.split_qkv(attention.qkv(block.attention_norm(x)), len(x), rotary)
        keys, values = self.keys[number], self.values[number]
        keys[:, :, begin : self.length], values[:, :, begin : self.length] = k, v
        return attention.out(attention.sdpa(q, keys[:, :, : self.length], values[:, :, : self.length], mask))


def cached_mask(model: Model, begin: int, end: int) -> Tensor:
    """Of tokens begin..end-1 over tokens 0..end-1: causal, but a prefix-LM's prompt attends to all of itself; with
    ALiBi's bias where the model has it."""
    distance = torch.arange(begin, end)[:, None] - torch.arange(end)[None]
    hidden = (distance < 0) & (model.objective == "causal" or begin > 0)
    if model.position != "alibi":
        return ~hidden
    bias = -torch.tensor(alibi_slopes(model.heads))[:, None, None] * distance.abs()
    return bias.masked_fill(hidden, -torch.inf)[None]
