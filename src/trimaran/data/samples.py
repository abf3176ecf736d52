"""The endless samples of a data set, in an order that seed and number alone decide.

An epoch shuffles the documents, joins them to one stream, cuts it into samples of seq_len + 1 tokens that overlap by
one (sample i is tokens [i·seq_len, i·seq_len + seq_len]), and shuffles those. Less than a sample is left at the end,
another part in every epoch. Sample number n is the (n mod S)-th of epoch n div S, with S samples in each.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.data.tokens import Ints, Tokens
from trimaran.spec import Mistake

EPOCHS_KEPT = 2  # replicas cross from one to the next at different moments
_DOCUMENTS, _SAMPLES = 1, 2  # what is shuffled: each has a random stream of its own


@dataclass(frozen=True)
class Epoch:
    order: npt.NDArray[np.integer]  # of documents
    ends: Ints  # of documents in that order, in tokens of the stream
    shuffle: npt.NDArray[np.integer]  # of samples


class Samples:
    """`documents`: those that belong to the split. `stream`: the number of the set in a blend."""

    def __init__(
        self, tokens: Tokens, documents: range, seq_len: int, vocab: int, seed: int, stream: int = 0, what: str = ""
    ) -> None:
        self.set, self.seq_len, self.vocab, self.seed, self.stream = tokens, seq_len, vocab, seed, stream
        starts = tokens.starts[documents.start : documents.stop + 1]
        lengths = np.diff(starts)
        self.numbers = documents.start + np.flatnonzero(lengths)  # documents without tokens have nothing to say
        total = int(lengths.sum())
        self.per_epoch = (total - 1) // seq_len
        if self.per_epoch < 1:
            nearest = f" the nearest that works: model.seq_len = {total - 1}." if total > 1 else " it needs more text."
            raise Mistake(
                f"{what or tokens.prefix} has {total:,} tokens in {len(documents):,} documents, less than one sample"
                f" of seq_len {seq_len} + 1;{nearest}"
            )
        self.epochs: OrderedDict[int, Epoch] = OrderedDict()

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """seq_len + 1 tokens, and for each the number of its document within the sample."""
        number_of_epoch, place = divmod(number, self.per_epoch)
        epoch = self.epoch(number_of_epoch)
        begin = int(epoch.shuffle[place]) * self.seq_len
        end = begin + self.seq_len + 1
        first, last = np.searchsorted(epoch.ends, [begin + 1, end])  # the documents of its first and last token
        documents, ends = epoch.order[first : last + 1], epoch.ends[first : last + 1]
        # Where stream and file differ by a constant inside a document:
        shift = self.set.starts[documents + 1] - ends
        cuts = np.concatenate([[begin], np.minimum(ends, end)])
        parts = zip((cuts[:-1] + shift).tolist(), (cuts[1:] + shift).tolist(), strict=True)
        tokens = np.concatenate([self.set.tokens[a:b] for a, b in parts]).astype(np.int64)
        within: Ints = np.repeat(np.arange(len(documents)), np.diff(cuts))
        if tokens.max() >= self.vocab or tokens.min() < 0:
            self._refuse(tokens, documents[within])
        return tokens, within

    def epoch(self, number: int) -> Epoch:
        if number in self.epochs:
            self.epochs.move_to_end(number)
            return self.epochs[number]
        order = self.numbers[self._shuffled(len(self.numbers), number, _DOCUMENTS)]
        ends = np.cumsum(self.set.starts[order + 1] - self.set.starts[order])
        made = Epoch(order, ends, self._shuffled(self.per_epoch, number, _SAMPLES))
        self.epochs[number] = made
        while len(self.epochs) > EPOCHS_KEPT:
            self.epochs.popitem(last=False)
        return made

    def _shuffled(self, count: int, epoch: int, what: int) -> npt.NDArray[np.integer]:
        bits = np.random.Philox(key=[self.seed % 2**64, epoch], counter=[0, 0, self.stream, what])
        numbers = np.arange(count, dtype=np.uint32 if count < 2**32 else np.int64)
        return np.random.Generator(bits).permutation(numbers)

    def _refuse(self, tokens: Ints, documents: npt.NDArray[np.integer]) -> None:
        at = int(np.argmax((tokens >= self.vocab) | (tokens < 0)))
        token = int(tokens[at])
        nearest = (
            f" the nearest that could work: model.vocab = {token + 1}." if token >= 0 else " no token is negative."
        )
        raise Mistake(
            f"Document {int(documents[at])} of {self.set.prefix} has the token {token}, but the model's vocab is"
            f" {self.vocab};{nearest}"
        )
