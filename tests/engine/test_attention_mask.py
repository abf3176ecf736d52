"""Which tokens influence which outputs: found by changing one token and comparing the outputs of the model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from tests.engine.stages import random_tokens, whole_stage
from trimaran.engine.model.attention_mask import alibi_slopes, attention_mask
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Model

POSITIONS = ["learned", "alibi", "rotary"]
UNCHANGED = 1e-12  # in float64, where outputs are around one
CHANGED = 1e-9


def tiny(position: str, seq_len: int) -> Stage:
    return whole_stage(Model(layers=2, hidden=16, heads=4, vocab=50, seq_len=seq_len, position=position))


def restarting(documents: list[int]) -> list[int]:
    """0, 1, 2, ... in each document."""
    return [documents[:i].count(document) for i, document in enumerate(documents)]


def outputs(stage: Stage, tokens: Tensor, documents: list[int] | None, prefix: list[int] | None) -> Tensor:
    """[rows, seq, hidden] after the final norm; all rows have the same documents and prefix."""
    places = None if documents is None else restarting(documents)
    every_row = [None if each is None else torch.tensor(each).expand_as(tokens) for each in (documents, prefix, places)]
    with torch.no_grad():
        return stage.activations(tokens, tokens, *every_row).unflatten(0, tokens.shape)


def influence(stage: Stage, documents: list[int] | None = None, prefix: list[int] | None = None) -> list[str]:
    """One line per token: x where the token of that column, when changed, changes this one's output."""
    tokens = random_tokens(stage.model, rows=1)
    changed = tokens.expand(stage.model.seq_len, -1).clone()
    changed.diagonal().add_(1).remainder_(stage.model.vocab)
    change = (outputs(stage, changed, documents, prefix) - outputs(stage, tokens, documents, prefix)).abs().amax(2).t()
    assert ((change < UNCHANGED) | (change > CHANGED)).all()  # nothing in between
    return ["".join("x" if moved > CHANGED else "." for moved in row) for row in change.tolist()]


PICTURES = {
    "causal": (None, None, ["x.....", "xx....", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"]),
    "separate documents": ([0, 0, 0, 1, 1, 1], None, ["x.....", "xx....", "xxx...", "...x..", "...xx.", "...xxx"]),
    "prefix of a row": (None, [1, 1, 1, 0, 0, 0], ["xxx...", "xxx...", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"]),
    "no prefix": (None, [0, 0, 0, 0, 0, 0], ["x.....", "xx....", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"]),
    "prefix of each document": (
        [0, 0, 0, 1, 1, 1],
        [1, 1, 0, 1, 1, 0],
        ["xx....", "xx....", "xxx...", "...xx.", "...xx.", "...xxx"],
    ),
    "prefix of a row over separate documents": (
        [0, 0, 0, 1, 1, 1],
        [1, 1, 1, 1, 1, 0],
        ["xxx...", "xxx...", "xxx...", "...xx.", "...xx.", "...xxx"],
    ),
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", PICTURES)
def test_tokens_are_influenced_as_drawn(name: str, position: str) -> None:
    documents, prefix, picture = PICTURES[name]
    assert influence(tiny(position, seq_len=6), documents, prefix) == picture


def lengths(total: int) -> st.SearchStrategy[list[int]]:
    """Of documents that fill a row."""
    cuts = st.sets(st.integers(1, total - 1), max_size=4).map(sorted)
    return cuts.map(lambda at: [end - begin for begin, end in zip([0, *at], [*at, total], strict=True)])


@settings(max_examples=25)
@given(st.sampled_from(POSITIONS), lengths(12), st.data())
def test_a_token_attends_to_earlier_tokens_of_its_document_and_to_the_prefix(
    position: str, sizes: list[int], data: st.DataObject
) -> None:
    """For any documents and any prefix of each, which may be empty or all of it."""
    documents = [number for number, size in enumerate(sizes) for _ in range(size)]
    prefix = []
    for size in sizes:
        inside = data.draw(st.integers(0, size), label="prefix")
        prefix += [1] * inside + [0] * (size - inside)
    expected = []
    for i in range(12):
        sees = [documents[i] == documents[j] and (j <= i or prefix[j] == 1) for j in range(12)]
        expected.append("".join("x" if each else "." for each in sees))
    assert influence(tiny(position, seq_len=12), documents, prefix) == expected


@settings(max_examples=25)
@given(st.sampled_from(POSITIONS), st.integers(2, 24), st.data())
def test_no_output_depends_on_a_later_token(position: str, seq_len: int, data: st.DataObject) -> None:
    stage, place = tiny(position, seq_len), data.draw(st.integers(0, seq_len - 1), label="changed from here on")
    tokens = random_tokens(stage.model, rows=2, seed=1)
    changed = torch.cat([tokens[:, :place], random_tokens(stage.model, rows=2, seed=2)[:, place:]], dim=1)
    before, after = outputs(stage, tokens, None, None), outputs(stage, changed, None, None)
    torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=UNCHANGED)


@settings(max_examples=25)
@given(st.sampled_from(POSITIONS), lengths(12), st.booleans())
def test_a_document_in_a_packed_row_is_as_in_a_row_of_its_own(
    position: str, sizes: list[int], with_prefix: bool
) -> None:
    """Of a model with the same weights whose sequence length is that of the document."""
    packed = tiny(position, seq_len=12)
    tokens = random_tokens(packed.model, rows=2)
    documents = [number for number, size in enumerate(sizes) for _ in range(size)]
    prefix = [int(i < size // 2) for size in sizes for i in range(size)] if with_prefix else None
    found = outputs(packed, tokens, documents, prefix)
    end = 0
    for size in sizes:
        begin, end = end, end + size
        weights = dict(packed.state_dict())
        if position == "learned":
            weights["embedding.position"] = weights["embedding.position"][:size]
        own = whole_stage(packed.model.replace(seq_len=size), weights)
        own_prefix = None if prefix is None else prefix[begin:end]
        expected = outputs(own, tokens[:, begin:end], None, own_prefix)
        torch.testing.assert_close(found[:, begin:end], expected, rtol=0, atol=UNCHANGED)


# --- ALiBi -----------------------------------------------------------------------------------------------------------


def test_slopes_of_eight_heads_are_the_papers() -> None:
    """arXiv 2108.12409, section 3: 1/2^1, 1/2^2, ..., 1/2^8."""
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 40, 112])
def test_slopes_equal_blooms(heads: int) -> None:
    """Hugging Face's bias of the second token is the slope itself. BLOOM-176B has 112 heads."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert alibi_slopes(heads) == pytest.approx(theirs.tolist(), rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_tensor_ranks_have_the_slopes_of_their_own_heads(ranks: int) -> None:
    model, like = Model(layers=1, hidden=24, heads=6, seq_len=5, position="alibi"), torch.zeros(1)
    parts = [attention_mask(model, TensorAxis(ranks, rank), like, None, None, rows=2) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts, dim=1), attention_mask(model, TensorAxis(), like, None, None, rows=2))
