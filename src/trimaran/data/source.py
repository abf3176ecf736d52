"""What a Job trains on, as samples by number: made up, of one data set, or a blend of several."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trimaran.data.blend import Order
from trimaran.data.record import read_record
from trimaran.data.samples import Samples
from trimaran.data.split import Split, documents_of
from trimaran.data.tokens import Ints, open_tokens
from trimaran.spec import Job, Mistake

SYNTHETIC = "synthetic"
_VALIDATION = 2  # the random stream of made-up validation; prefix lengths are drawn from stream 1


class Source(Protocol):
    """Where samples come from. A sample depends on its number alone, so where training stands is one number."""

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """seq_len + 1 tokens, and for each the number of its document within the sample (0, 0, 0, 1, 1, ...)."""


class Synthetic:
    """Text-like numbers for tests and benchmarks: documents of random length, each a walk with a stride of its own and
    some noise, so that there is something to learn."""

    def __init__(self, vocab: int, seq_len: int, seed: int, stream: int = 0) -> None:
        self.vocab, self.length, self.seed, self.stream = vocab, seq_len + 1, seed, stream

    def sample(self, number: int) -> tuple[Ints, Ints]:
        bits = np.random.Philox(key=[self.seed, number], counter=[0, 0, 0, self.stream])
        stream = np.random.Generator(bits)
        documents: Ints = np.cumsum(stream.random(self.length) < 4 / self.length)
        documents -= documents[0]
        count = documents[-1] + 1
        start, stride = stream.integers(0, self.vocab, count), stream.integers(1, 8, count)
        place = np.arange(self.length) - np.searchsorted(documents, documents)
        tokens = (start[documents] + stride[documents] * place) % self.vocab
        noise = stream.random(self.length) < 0.05
        return np.where(noise, stream.integers(0, self.vocab, self.length), tokens), documents


class Blended:
    """Each set goes through its own samples in order."""

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        self.sources, self.order = sources, Order(weights)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        chosen, own = self.order.place(number)
        return self.sources[chosen].sample(own)


def source_of(job: Job, split: Split = "train") -> Source:
    """Opened and checked: files that are missing, damaged, too short or made for another vocabulary are refused."""
    given = job.data.source
    if isinstance(given, str):
        return _one(job, given, split, 0)
    return Blended([_one(job, path, split, i) for i, path in enumerate(given)], list(given.values()))


def check(job: Job) -> None:
    """A Mistake where the job cannot read what it trains on. Opens indices, reads no tokens."""
    source_of(job)


def _one(job: Job, path: str, split: Split, stream: int) -> Source:
    model, share = job.model, job.data.validation
    if path == SYNTHETIC:
        return Synthetic(model.vocab, model.seq_len, job.seed, _VALIDATION if split == "validation" else 0)
    tokens = open_tokens(path)
    record = read_record(tokens.prefix)
    if record and record.vocab > model.vocab:
        raise Mistake(
            f"{tokens.prefix} was prepared with a vocabulary of {record.vocab} tokens, but the model's vocab is"
            f" {model.vocab}; the nearest that works: model.vocab = {record.vocab}."
        )
    documents = documents_of(split, tokens.documents, share)
    if split == "validation" and not len(documents):
        raise Mistake(
            f"{tokens.prefix} has {tokens.documents} documents, of which data.validation = {share:g} leaves none for"
            f" validation; the nearest that works: {_smallest_share(tokens.documents)}."
        )
    what = f"The {split} part of {tokens.prefix} (data.validation = {share:g})" if share else str(tokens.prefix)
    return Samples(tokens, documents, model.seq_len, model.vocab, job.seed, stream, what)


def _smallest_share(documents: int) -> str:
    return f"data.validation = {1 / documents:.2g}" if documents > 1 else "a set of at least 2 documents"
