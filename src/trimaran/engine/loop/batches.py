"""What a step trains on: the samples of a batch, cut for one replica, as tensors.

Which samples a step gets depends on how many were consumed before, never on the layout.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimaran.data.indexed_dataset import Ints
from trimaran.data.source import SampleSource
from trimaran.spec import Job


def batch(
    job: Job, source: SampleSource, consumed: int, size: int, dp_rank: int, device: torch.device
) -> dict[str, Tensor]:
    """One replica's share of a step, [rows, seq_len] each: what Stage.forward takes. token_weights are 1 for
    every token that counts; Trainer divides them by the batch's total."""
    rows = size // job.layout.dp
    numbers = range(consumed + dp_rank * rows, consumed + (dp_rank + 1) * rows)
    samples = [source.sample(number) for number in numbers]
    tokens, documents = (np.stack([sample[i] for sample in samples]) for i in (0, 1))
    parts: dict[str, npt.NDArray[Any]] = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    weights = np.ones_like(parts["tokens"], dtype=np.float32)
    inputs = documents[:, :-1]
    if job.data.documents == "apart":
        weights[documents[:, 1:] != inputs] = 0.0  # the next document's first token cannot be known
        parts |= {"documents": inputs, "positions": positions(inputs)}
    if job.model.objective == "prefix":
        parts["prefix"] = prefixes(job, inputs, numbers)
        if job.data.loss_on == "targets":
            # The token after a prefix's last one is the first target.
            inside = np.concatenate([parts["prefix"][:, 1:], np.zeros_like(parts["prefix"][:, :1])], axis=1)
            weights[(inside == 1) & (parts["prefix"] == 1)] = 0.0
    parts["token_weights"] = weights
    return {name: on_device(torch.from_numpy(np.ascontiguousarray(part)), device) for name, part in parts.items()}


def micro_batches(whole: dict[str, Tensor], rows: int) -> list[dict[str, Tensor]]:
    splits = [tensor.split(rows) for tensor in whole.values()]
    return [dict(zip(whole, parts, strict=True)) for parts in zip(*splits, strict=True)]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """From pinned memory, so that the copy waits for nothing that the GPU is doing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def positions(documents: Ints) -> Ints:
    """0, 1, 2, ... from the start of each document."""
    return np.stack([np.arange(len(row)) - np.searchsorted(row, row) for row in documents])


def prefixes(job: Job, documents: Ints, numbers: range) -> Ints:
    """1 where a token belongs to the prefix of its row or document, whose length is drawn by seed and sample."""
    if job.data.prefix == "row":
        documents = np.zeros_like(documents)
    places, mask = positions(documents), np.zeros_like(documents)
    for row, number in enumerate(numbers):
        stream = np.random.Generator(np.random.Philox(key=[job.seed, number], counter=[0, 0, 0, 1]))
        lengths = np.bincount(documents[row])
        cut = (stream.random(len(lengths)) * lengths).astype(np.int64)
        mask[row] = places[row] < cut[documents[row]]
    return mask
