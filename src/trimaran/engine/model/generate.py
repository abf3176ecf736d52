"""Tokens that a model makes up, one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimaran.engine.model.inference import Reader
from trimaran.engine.model.transformer import Stage

SMALL_PARAMETERS = 20_000_000


@dataclass(frozen=True)
class Taste:
    temperature: float = 0.8  # 0: always the likeliest
    top_k: int = 50  # of so many likeliest; 0: of all


def choices(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampled(
    stage: Stage, prompt: Sequence[int], taste: Taste, stream: torch.Generator, end: int | None = None
) -> Iterator[int]:
    """Endless, unless the token `end` comes. When the model's length is reached, the older half is forgotten."""
    longest = stage.model.seq_len
    context = list(prompt[-longest:])
    reader = Reader(stage)
    logits = reader.read(context)
    while True:
        token = chosen(logits, taste, stream)
        yield token
        if token == end:
            return
        context.append(token)
        if len(context) > longest:
            context = context[-(longest + 1) // 2 :]
            reader = Reader(stage)
            logits = reader.read(context)
        else:
            logits = reader.read([token])


def take_threads(stage: Stage) -> None:
    """One for a small model: its products are too short to be shared, and on a busy machine threads wait for each
    other (`tiny`: 205 tokens per second with one, 11 with two on two cores that others use)."""
    if sum(value.numel() for value in stage.parameters()) < SMALL_PARAMETERS:
        torch.set_num_threads(1)


def chosen(logits: Tensor, taste: Taste, stream: torch.Generator) -> int:
    if taste.temperature == 0:
        return int(logits.argmax())
    values, tokens = logits.topk(min(taste.top_k or len(logits), len(logits)))
    # Less their largest before the division, which a tiny temperature would take to infinity.
    chances = ((values - values[0]) / taste.temperature).softmax(0)
    return int(tokens[torch.multinomial(chances, 1, generator=stream)])
