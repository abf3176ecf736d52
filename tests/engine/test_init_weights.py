"""Initial weights: the same model for every layout, with GPT-2's standard deviations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimaran.engine.model import init_weights
from trimaran.spec import Layout, Model
from trimaran.spec.tensors import NamedTensor, embedding_tensors, layer_tensors, stage_tensors

MODEL = Model(layers=8, hidden=256, heads=8, vocab=1000, seq_len=256, embedding_norm=True, tied_embeddings=False)


def part(
    tensor: NamedTensor, model: Model, seed: int = 0, *, tp: int = 1, tp_rank: int = 0, rows: slice = slice(None)
) -> Tensor:
    """These rows of a tensor rank's shard."""
    shape = tensor.local_shape(tp)
    begin, end, _ = rows.indices(shape[0])
    local = torch.full((end - begin, *shape[1:]), torch.nan)
    offsets = [begin, *[0] * (len(shape) - 1)]
    if tensor.cut is not None:
        offsets[tensor.cut] += tp_rank * shape[tensor.cut]
    init_weights.init_tensor_(local, tensor, offsets, model, seed)
    return local


def joined(parts: list[Tensor], tensor: NamedTensor) -> Tensor:
    return torch.cat(parts, dim=tensor.cut) if tensor.cut is not None else parts[0]


@pytest.fixture
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a few rows, so that small tensors need several."""
    monkeypatch.setattr(init_weights, "BLOCK_ELEMENTS", 100)


shapes = st.builds(
    lambda units, width, vocab, seed: (
        Model(layers=1, hidden=4 * units, heads=4, ffn_hidden=4 * width, vocab=vocab, seq_len=24),
        seed,
    ),
    st.integers(1, 12),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(0, 2**32),
)


@pytest.mark.usefixtures("short_streams")
@settings(max_examples=30)
@given(shapes, st.sampled_from([2, 4]))
def test_the_shards_of_tensor_ranks_concatenate_to_the_same_whole(case: tuple[Model, int], tp: int) -> None:
    """More ranks pad the vocabulary more, but the rows of its tokens stay."""
    model, seed = case
    for unsharded, sharded in zip(every_tensor(model, 1), every_tensor(model, tp), strict=True):
        whole = part(unsharded, model, seed)
        parts = joined([part(sharded, model, seed, tp=tp, tp_rank=rank) for rank in range(tp)], sharded)
        assert torch.equal(parts[: len(whole)], whole), unsharded.name
        assert not parts[len(whole) :].any(), unsharded.name


@pytest.mark.usefixtures("short_streams")
@settings(max_examples=30)
@given(shapes, st.sampled_from([1, 2]), st.integers(2, 5))
def test_the_row_shards_of_data_parallel_ranks_concatenate_to_the_same_part(
    case: tuple[Model, int], tp: int, dp: int
) -> None:
    """Sharded as by torch.chunk: equal shards rounded up, the last ones shorter or empty."""
    model, seed = case
    for tensor in every_tensor(model, tp):
        whole = part(tensor, model, seed, tp=tp, tp_rank=tp - 1)
        found, begin = [], 0
        for chunk in whole.chunk(dp):
            rows = slice(begin, begin + len(chunk))
            found.append(part(tensor, model, seed, tp=tp, tp_rank=tp - 1, rows=rows))
            begin += len(chunk)
        assert torch.equal(torch.cat(found), whole), tensor.name
        assert part(tensor, model, seed, tp=tp, tp_rank=tp - 1, rows=slice(begin, begin)).numel() == 0


def every_tensor(model: Model, tp: int) -> list[NamedTensor]:
    return stage_tensors(model, Layout(tp=tp), stage=0)


def test_every_name_and_every_seed_has_values_of_its_own() -> None:
    matrices = [t for t in every_tensor(MODEL, 1) if len(t.shape) == 2]
    beginnings = {part(t, MODEL, seed, rows=slice(1)).numpy().tobytes() for t in matrices for seed in range(3)}
    assert len(beginnings) == 3 * len(matrices) == 3 * (4 * MODEL.layers + 3)


def test_rows_do_not_repeat_from_one_stream_to_the_next() -> None:
    """Also at the real length of a stream: 2^20 elements, here 4096 rows."""
    rows = init_weights.normal_rows("a.weight", 256, 0, 4000, 8300)
    assert len(np.unique(rows[:, 0])) > 0.999 * len(rows)
    assert np.array_equal(rows[90:200], init_weights.normal_rows("a.weight", 256, 0, 4090, 4200))


def test_values_are_normal_with_gpt2s_deviations() -> None:
    """0.02, and 0.02/√(2 x layers) where a layer writes to the residual stream. 65536 elements or more each: the
    standard error of the deviation is 0.3 %, that of the mean 0.4 % of it."""
    smaller = 0.02 / math.sqrt(2 * MODEL.layers)
    expected = {"qkv": 0.02, "out": smaller, "up": 0.02, "down": smaller, "word": 0.02, "position": 0.02}
    seen = set()
    for tensor in [*embedding_tensors(MODEL, 1), *layer_tensors(MODEL, "layers.5")]:
        if len(tensor.shape) == 1:
            continue
        kind = next(kind for kind in expected if kind in tensor.name)
        standard = part(tensor, MODEL)[: MODEL.vocab].double() / expected[kind]
        assert standard.std().item() == pytest.approx(1.0, abs=0.015), tensor.name
        assert standard.mean().item() == pytest.approx(0.0, abs=0.02), tensor.name
        assert (standard.abs() < 1.0).double().mean().item() == pytest.approx(0.6827, abs=0.01), tensor.name
        seen.add(kind)
    assert seen == expected.keys()


def test_padding_rows_are_zero_and_no_others() -> None:
    for name in ("embedding.word", "head.weight"):
        tensor = next(t for t in every_tensor(MODEL, 1) if t.name == name)
        values = part(tensor, MODEL)
        assert values.shape[0] == 1024
        assert values[:1000].any(dim=1).all()
        assert not values[1000:].any()


def test_norms_are_one_and_biases_zero() -> None:
    flat = [tensor for tensor in every_tensor(MODEL, 1) if len(tensor.shape) == 1]
    assert len(flat) == MODEL.layers * (2 * 2 + 4) + 2 * 2  # norms of two each, and a layer's four biases
    for tensor in flat:
        is_norm_weight = "norm" in tensor.name and tensor.name.endswith("weight")
        assert (part(tensor, MODEL) == (1.0 if is_norm_weight else 0.0)).all(), tensor.name
