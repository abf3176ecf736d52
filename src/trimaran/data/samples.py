"""The endless samples of a dataset, shuffled; a sample depends only on seed and number.

An epoch shuffles the documents, concatenates them, cuts the stream into samples of seq_len + 1 tokens that overlap by
one (sample i is tokens [i·seq_len, i·seq_len + seq_len]), and shuffles those. The remainder, less than a sample, is
dropped: another part in every epoch. Sample number n is the (n mod S)-th of epoch n div S, with S samples in each.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trimaran.data.indexed_dataset import IndexedDataset, Ints
from trimaran.spec import Mistake

EPOCHS_CACHED = 2  # replicas cross from one to the next at different moments
_DOCUMENTS, _SAMPLES = 1, 2  # what is shuffled: each has a random stream of its own


@dataclass(frozen=True)
class Epoch:
    order: npt.NDArray[np.integer]  # of documents
    ends: Ints  # of documents in that order, in tokens of the stream
    shuffle: npt.NDArray[np.integer]  # of samples


class Samples:
    """`documents`: those of the split. `stream`: the dataset's number in a blend, which seeds its own shuffle."""

    def __init__(
        self,
        dataset: IndexedDataset,
        documents: range,
        seq_len: int,
        vocab: int,
        seed: int,
        stream: int = 0,
        what: str = "",
    ) -> None:
        self.dataset, self.seq_len, self.vocab, self.seed, self.stream = dataset, seq_len, vocab, seed, stream
        starts = dataset.starts[documents.start : documents.stop + 1]
        lengths = np.diff(starts)
        self.numbers = documents.start + np.flatnonzero(lengths)  # without empty documents
        total = int(lengths.sum())
        self.per_epoch = (total - 1) // seq_len
        if self.per_epoch < 1:
            nearest = f" the nearest that works: model.seq_len = {total - 1}." if total > 1 else " it needs more text."
            raise Mistake(
                f"{what or dataset.prefix} has {total:,} tokens in {len(documents):,} documents, less than one sample"
                f" of seq_len {seq_len} + 1;{nearest}"
            )
        self.epoch = lru_cache(EPOCHS_CACHED)(self._shuffle)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """seq_len + 1 tokens, and for each the number of its document within the sample."""
        epoch_number, place = divmod(number, self.per_epoch)
        epoch = self.epoch(epoch_number)
        begin = int(epoch.shuffle[place]) * self.seq_len
        end = begin + self.seq_len + 1
        first, last = np.searchsorted(epoch.ends, [begin + 1, end])  # the documents of its first and last token
        documents, ends = epoch.order[first : last + 1], epoch.ends[first : last + 1]
        # From the position in the epoch's stream to that in the file, constant inside a document.
        shift = self.dataset.starts[documents + 1] - ends
        cuts = np.concatenate([[begin], np.minimum(ends, end)])
        parts = zip((cuts[:-1] + shift).tolist(), (cuts[1:] + shift).tolist(), strict=True)
        tokens = np.concatenate([self.dataset.tokens[a:b] for a, b in parts]).astype(np.int64)
        within: Ints = np.repeat(np.arange(len(documents)), np.diff(cuts))
        if tokens.max() >= self.vocab or tokens.min() < 0:
            self._raise_outside_vocab(tokens, documents[within])
        return tokens, within

    def _shuffle(self, number: int) -> Epoch:
        order = self.numbers[self._permutation(len(self.numbers), number, _DOCUMENTS)]
        ends = np.cumsum(self.dataset.starts[order + 1] - self.dataset.starts[order])
        return Epoch(order, ends, self._permutation(self.per_epoch, number, _SAMPLES))

    def _permutation(self, count: int, epoch: int, what: int) -> npt.NDArray[np.integer]:
        bits = np.random.Philox(key=[self.seed % 2**64, epoch], counter=[0, 0, self.stream, what])
        numbers = np.arange(count, dtype=np.uint32 if count < 2**32 else np.int64)
        return np.random.Generator(bits).permutation(numbers)

    def _raise_outside_vocab(self, tokens: Ints, documents: npt.NDArray[np.integer]) -> None:
        at = int(np.argmax((tokens >= self.vocab) | (tokens < 0)))
        token = int(tokens[at])
        nearest = f" the nearest that could work: model.vocab = {token + 1}." if token >= 0 else " tokens are positive."
        raise Mistake(
            f"Document {int(documents[at])} of {self.dataset.prefix} has the token {token}, but the model's vocab is"
            f" {self.vocab};{nearest}"
        )
