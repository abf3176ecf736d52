"""The samples of a Job by number: synthetic, from one dataset, or a blend of several."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from trimaran.data.blend import BlendOrder
from trimaran.data.indexed_dataset import Ints, dataset_prefix, open_dataset
from trimaran.data.manifest import read_manifest
from trimaran.data.samples import Samples
from trimaran.spec import Job, Mistake

SYNTHETIC = "synthetic"
FINGERPRINT_BYTES = 2**20  # of a dataset's begin and of its end
_VALIDATION = 2  # the random stream of synthetic validation; prefix lengths are drawn from stream 1

Split = Literal["train", "validation"]


class SampleSource(Protocol):
    """A sample depends on its number alone, so the position of a training run is one number."""

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """seq_len + 1 tokens, and for each the number of its document within the sample (0, 0, 0, 1, 1, ...)."""


class Synthetic:
    """Tokens for tests and benchmarks: documents of random length, each an arithmetic sequence with its own stride and
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


class Blend:
    """Each source gives its own samples in order."""

    def __init__(self, sources: Sequence[SampleSource], weights: Sequence[float]) -> None:
        self.sources, self.order = sources, BlendOrder(weights)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        chosen, own = self.order.locate(number)
        return self.sources[chosen].sample(own)


def source_of(job: Job, split: Split = "train") -> SampleSource:
    """Refuses files that are missing, damaged, too short or prepared for a larger vocabulary."""
    given = job.data.source
    if isinstance(given, str):
        return _open(job, given, split, 0)
    return Blend([_open(job, path, split, i) for i, path in enumerate(given)], list(given.values()))


def check_data(job: Job) -> None:
    """A Mistake where the job cannot read its data. Opens indices, reads no tokens."""
    source_of(job)


def fingerprint(job: Job) -> dict[str, str]:
    """What identifies the tokens of each source, by its place in the blend: its weight, and the sizes, begin and end of
    its files. The same dataset has the same under another path."""
    given = job.data.source
    weights = {given: 1.0} if isinstance(given, str) else given
    return {f"{i}, weight {weight:g}": _identify(path) for i, (path, weight) in enumerate(weights.items())}


def _identify(path: str) -> str:
    if path == SYNTHETIC:
        return SYNTHETIC
    sha, prefix = hashlib.sha256(), dataset_prefix(path)
    for file in (Path(f"{prefix}.idx"), Path(f"{prefix}.bin")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            sha.update(f"{size} ".encode() + stream.read(FINGERPRINT_BYTES))
            stream.seek(max(0, size - FINGERPRINT_BYTES))
            sha.update(stream.read())
    return sha.hexdigest()


def _open(job: Job, path: str, split: Split, stream: int) -> SampleSource:
    model, share = job.model, job.data.validation
    if path == SYNTHETIC:
        return Synthetic(model.vocab, model.seq_len, job.seed, _VALIDATION if split == "validation" else 0)
    dataset = open_dataset(path)
    manifest = read_manifest(dataset.prefix)
    if manifest and manifest.vocab > model.vocab:
        raise Mistake(
            f"{dataset.prefix} was prepared with a vocabulary of {manifest.vocab} tokens, but the model's vocab is"
            f" {model.vocab}; the nearest that works: model.vocab = {manifest.vocab}."
        )
    documents = split_documents(split, dataset.documents, share)
    if split == "validation" and not len(documents):
        count = dataset.documents
        nearest = f"data.validation = {1 / count:.2g}" if count > 1 else "a dataset of at least 2 documents"
        raise Mistake(
            f"{dataset.prefix} has {count} documents, of which data.validation = {share:g} leaves none for"
            f" validation; the nearest that works: {nearest}."
        )
    what = f"The {split} part of {dataset.prefix} (data.validation = {share:g})" if share else str(dataset.prefix)
    return Samples(dataset, documents, model.seq_len, model.vocab, job.seed, stream, what)


def split_documents(split: Split, count: int, share: float) -> range:
    """The last `share` of the documents, rounded, is for validation; training keeps at least one. Not shuffled."""
    held_out = min(round(count * share), max(count - 1, 0))
    return range(count - held_out) if split == "train" else range(count - held_out, count)
