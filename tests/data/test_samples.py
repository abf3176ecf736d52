"""Samples: every token once an epoch, the same whatever is asked before, split and blended as said."""

import random
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.files import write_set
from tests.spec.machines import two_cores
from trimaran.data.blend import BlendOrder
from trimaran.data.indexed_dataset import IndexedDataset, open_dataset
from trimaran.data.samples import Samples
from trimaran.data.source import check_data, source_of, split_documents
from trimaran.spec import Batch, Data, Job, Mistake, Model, presets

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def numbered(folder: str | Path, sizes: list[int]) -> IndexedDataset:
    """Every token another number, so that it can be found again."""
    ends = np.cumsum([0, *sizes]).tolist()
    return open_dataset(write_set(Path(folder) / "a", [[range(a, b)] for a, b in pairwise(ends)], 4))


def job(source: Any, seq_len: int = 8, vocab: int = 60_000, validation: float = 0.0, seed: int = 1) -> Job:
    return Job(
        model=Model(layers=1, hidden=8, heads=1, vocab=vocab, seq_len=seq_len),
        cluster=two_cores().replace(devices_per_node=1),
        trainer=presets.trainer("trimaran"),
        batch=Batch(size=1),
        precision="fp32",
        data=Data(source=source, validation=validation),
        seed=seed,
    )


@settings(max_examples=60)
@given(lengths, st.integers(1, 12), st.integers(0, 2**32), st.integers(0, 5))
def test_an_epoch_has_every_token_once_but_for_the_tail(sizes: list[int], seq_len: int, seed: int, epoch: int) -> None:
    with TemporaryDirectory() as folder:
        tokens = numbered(folder, sizes)
        total = sum(sizes)
        if total <= seq_len:
            with pytest.raises(Mistake, match="less than one sample"):
                Samples(tokens, range(len(sizes)), seq_len, 10**6, seed)
            return
        samples = Samples(tokens, range(len(sizes)), seq_len, 10**6, seed)
        count = samples.per_epoch
        assert count == (total - 1) // seq_len
        found = [samples.sample(epoch * count + i) for i in range(count)]
        # The inputs of all samples together: each token at most once, and fewer than a sample left out.
        inputs = np.concatenate([sample[:-1] for sample, _ in found])
        assert len(set(inputs.tolist())) == len(inputs) == count * seq_len
        assert total - len(inputs) <= seq_len
        # Joined where one ends with the token that another begins with, they are whole documents, one after another.
        by_first = {int(sample[0]): sample.tolist() for sample, _ in found}
        lasts = {int(sample[-1]) for sample, _ in found}
        (first,) = set(by_first) - lasts
        stream = [first]
        while stream[-1] in by_first:
            stream += by_first[stream[-1]][1:]
        assert len(stream) == count * seq_len + 1
        starts, ends = set(tokens.starts[:-1].tolist()), set((tokens.starts[1:] - 1).tolist())
        assert stream[0] in starts
        for left, right in pairwise(stream):
            assert right == left + 1 or (left in ends and right in starts)


@settings(max_examples=40)
@given(lengths, st.integers(0, 2**32))
def test_documents_are_numbered_within_the_sample(sizes: list[int], seed: int) -> None:
    with TemporaryDirectory() as folder:
        tokens = numbered(folder, [*sizes, 9])
        samples = Samples(tokens, range(len(sizes) + 1), 8, 10**6, seed)
        for number in range(2 * samples.per_epoch):
            found, documents = samples.sample(number)
            assert found.dtype == documents.dtype == np.int64
            whose = np.searchsorted(tokens.starts, found, side="right")
            assert documents[0] == 0
            assert set(np.diff(documents)) <= {0, 1}
            assert np.array_equal(np.diff(documents) != 0, np.diff(whose) != 0)


def test_samples_do_not_depend_on_the_order_of_asking(tmp_path: Path) -> None:
    chance = random.Random(1)
    write_set(tmp_path / "a", [[[chance.randrange(100) for _ in range(chance.randrange(50))]] for _ in range(60)])
    write_set(tmp_path / "b", [[[chance.randrange(100) for _ in range(chance.randrange(50))]] for _ in range(90)])
    of = job({f"{tmp_path}/a": 0.7, f"{tmp_path}/b": 0.3})
    straight = source_of(of)
    expected = [straight.sample(number) for number in range(1500)]
    numbers = list(range(1500))
    chance.shuffle(numbers)
    other = source_of(of)
    for number in numbers[:400]:
        for mine, theirs in zip(other.sample(number), expected[number], strict=True):
            assert np.array_equal(mine, theirs)


def test_epochs_and_seeds_have_orders_of_their_own(tmp_path: Path) -> None:
    tokens = numbered(tmp_path, [20] * 50)
    a, b = (Samples(tokens, range(50), 8, 10**6, seed) for seed in (1, 2))
    first, second, other = ([s.sample(start + i)[0].tolist() for i in range(a.per_epoch)] for s, start in (
        (a, 0), (a, a.per_epoch), (b, 0)
    ))  # fmt: skip
    assert first != second
    assert first != other
    assert sorted(first) != sorted(second)  # documents are shuffled too, so samples are cut elsewhere


@settings(max_examples=200)
@given(st.integers(0, 10**7), st.floats(0, 1, exclude_max=True))
def test_the_split_is_disjoint_complete_and_last(count: int, share: float) -> None:
    train, kept = split_documents("train", count, share), split_documents("validation", count, share)
    assert (train.start, train.stop, kept.stop) == (0, kept.start, count)
    assert len(train) >= min(count, 1)
    assert abs(len(kept) - share * count) <= 0.5 or len(train) == 1
    assert share > 0 or not kept


def test_validation_samples_are_of_the_last_documents_only(tmp_path: Path) -> None:
    numbered(tmp_path, [20] * 50)
    of = job(f"{tmp_path}/a", validation=0.1)
    train, kept = source_of(of), source_of(of, "validation")
    assert max(int(train.sample(i)[0].max()) for i in range(300)) < 900
    assert min(int(kept.sample(i)[0].min()) for i in range(300)) >= 900


def test_synthetic_validation_is_another_stream() -> None:
    of = job("synthetic")
    assert not np.array_equal(source_of(of).sample(0)[0], source_of(of, "validation").sample(0)[0])


@settings(max_examples=80)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.sampled_from([1, 7, 64, 1000]))
def test_every_prefix_of_a_blend_keeps_to_the_weights(weights: list[float], block: int) -> None:
    order, shares = BlendOrder(weights, block), np.array(weights) / sum(weights)
    taken = np.zeros(len(weights), int)
    for number in range(400):
        chosen, own = order.locate(number)
        assert own == taken[chosen]  # each set in order, nothing left out
        taken[chosen] += 1
        assert np.all(np.abs(taken - shares * (number + 1)) < len(weights))


def test_a_blend_is_the_same_for_any_block_and_far_out() -> None:
    weights = [0.5, 0.3, 0.15, 0.05]
    a, b = BlendOrder(weights, 64), BlendOrder(weights)
    far = 10**12
    for start in (0, 10**6, far):
        assert [a.locate(start + i) for i in range(300)] == [b.locate(start + i) for i in range(300)]
    for i, weight in enumerate(weights):
        own = next(own for n in range(far, far + 300) for chosen, own in [a.locate(n)] if chosen == i)
        assert abs(own - weight * far) < 40


@pytest.mark.parametrize(
    ("changes", "split", "words"),
    [
        ({"source": "nowhere/wiki"}, "train", ["There is no nowhere/wiki.idx"]),
        ({"seq_len": 1000}, "train", ["1,000 tokens in 50 documents", "seq_len 1000 + 1", "model.seq_len = 999"]),
        ({"validation": 0.01}, "validation", ["50 documents", "none for validation", "data.validation = 0.02"]),
        ({"validation": 0.02, "seq_len": 32}, "validation", ["validation part", "20 tokens", "less than one sample"]),
    ],
)
def test_what_cannot_be_trained_on_gets_a_sentence(
    tmp_path: Path, changes: dict[str, Any], split: Any, words: list[str]
) -> None:
    numbered(tmp_path, [20] * 50)
    with pytest.raises(Mistake) as caught:
        source_of(job(**{"source": f"{tmp_path}/a", **changes}), split)
    for word in words:
        assert word in str(caught.value)


def test_a_token_outside_the_vocabulary_is_named_when_it_is_read(tmp_path: Path) -> None:
    of = job(str(write_set(tmp_path / "a", [[[1] * 20], [[2, 2, 500, 2]]])), vocab=400)
    check_data(of)
    source = source_of(of)
    with pytest.raises(Mistake, match=r"Document 1 of .*a has the token 500, but the model's vocab is 400;.*501"):
        [source.sample(number) for number in range(40)]
