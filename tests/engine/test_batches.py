"""What a step trains on: which samples, and which tokens count, independent of the layout."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.spec.machines import two_cores
from trimaran.data.source import Synthetic
from trimaran.engine.loop.batches import batch
from trimaran.spec import Batch, Data, Job, Layout, Model, presets

CPU = torch.device("cpu")
SEQ = 32

DATA = {
    "joined": {},
    "apart": {"documents": "apart"},
    "a prefix a row": {"objective": "prefix"},
    "a prefix a row, apart": {"objective": "prefix", "documents": "apart"},
    "a prefix a document": {"objective": "prefix", "documents": "apart", "prefix": "document"},
    "a prefix a row, loss on all": {"objective": "prefix", "loss_on": "all"},
    "a prefix a document, loss on all": {
        "objective": "prefix",
        "documents": "apart",
        "prefix": "document",
        "loss_on": "all",
    },
}


def job(dp: int = 1, size: int = 12, seed: int = 1234, objective: str = "causal", **data: Any) -> Job:
    return Job(
        model=Model(layers=1, hidden=8, heads=1, vocab=100, seq_len=SEQ, objective=objective),
        cluster=two_cores().replace(nodes=dp, devices_per_node=1),
        trainer=presets.trainer("trimaran"),
        layout=Layout(dp=dp),
        batch=Batch(size=size),
        precision="fp32",
        seed=seed,
        data=Data(**data),
    )


def whole_batch(of: Job, consumed: int = 0) -> dict[str, Tensor]:
    """The shares of all data-parallel ranks, concatenated."""
    source = Synthetic(of.model.vocab, SEQ, of.seed)
    shares = [batch(of, source, consumed, of.batch.size, rank, CPU) for rank in range(of.layout.dp)]
    return {name: torch.cat([share[name] for share in shares]) for name in shares[0]}


@pytest.mark.parametrize("name", DATA)
def test_tokens_have_weight_where_their_target_is_trained_on(name: str) -> None:
    """A target counts unless it begins another document, or lies in a prefix when the loss is on targets only."""
    of = job(**DATA[name])
    found, source = whole_batch(of, consumed=40), Synthetic(100, SEQ, of.seed)
    apart = DATA[name].get("documents") == "apart"
    for row in range(of.batch.size):
        tokens, documents = source.sample(40 + row)
        assert found["tokens"][row].tolist() == tokens[:-1].tolist()
        assert found["targets"][row].tolist() == tokens[1:].tolist()
        prefix = [0] * SEQ if "prefix" not in found else found["prefix"][row].tolist()
        prefix.append(0)  # the last target is never in one: a prefix leaves at least one input out
        for i in range(SEQ):
            counts = not (apart and documents[i + 1] != documents[i])
            if of.data.loss_on == "targets" and prefix[i + 1] == 1:
                counts = False
            assert found["token_weights"][row, i] == counts, (row, i)


@pytest.mark.parametrize("name", [name for name in DATA if "apart" in name or "document" in name])
def test_separate_documents_are_numbered_and_positions_restart(name: str) -> None:
    of = job(**DATA[name])
    found, source = whole_batch(of), Synthetic(100, SEQ, of.seed)
    for row in range(of.batch.size):
        documents = source.sample(row)[1][:-1].tolist()
        assert found["documents"][row].tolist() == documents
        assert found["positions"][row].tolist() == [documents[:i].count(documents[i]) for i in range(SEQ)]


def test_a_batch_has_only_the_tensors_that_the_job_needs() -> None:
    """Without separate documents or a prefix, attention is causal, for which there are fused kernels."""
    assert whole_batch(job()).keys() == {"tokens", "targets", "token_weights"}


@pytest.mark.parametrize("name", [name for name in DATA if "prefix" in name])
def test_a_prefix_begins_its_row_or_document_and_is_never_all_of_it(name: str) -> None:
    of = job(size=200, **DATA[name])
    found = whole_batch(of)
    shares = []
    for row in range(of.batch.size):
        documents = [0] * SEQ if of.data.prefix == "row" else found["documents"][row].tolist()
        for document in set(documents):
            inside = [int(p) for p, d in zip(found["prefix"][row], documents, strict=True) if d == document]
            length = sum(inside)
            assert inside == [1] * length + [0] * (len(inside) - length)
            assert length < len(inside)
            shares += [length / len(inside)] if len(inside) >= 16 else []
    # Lengths are uniform from 0 to one less than all, so the mean share is a little under a half.
    assert 0.4 < np.mean(shares) < 0.55
    assert min(shares) < 0.1
    assert max(shares) > 0.9


@settings(max_examples=40)
@given(st.sampled_from(list(DATA)), st.sampled_from([2, 3, 4, 6, 12]), st.integers(0, 10**9), st.integers(0, 2**32))
def test_a_step_has_the_same_rows_for_any_number_of_replicas(name: str, dp: int, consumed: int, seed: int) -> None:
    one = whole_batch(job(seed=seed, **DATA[name]), consumed)
    many = whole_batch(job(dp=dp, seed=seed, **DATA[name]), consumed)
    assert one.keys() == many.keys()
    for part, value in one.items():
        assert torch.equal(value, many[part]), part


@settings(max_examples=40)
@given(st.sampled_from(list(DATA)), st.integers(0, 50), st.integers(1, 11))
def test_a_step_continues_after_the_samples_of_the_last(name: str, consumed: int, step: int) -> None:
    """Two steps of any size see the same samples as one, so a batch-size ramp-up skips and repeats nothing."""
    of = job(**DATA[name])
    source, whole = Synthetic(100, SEQ, of.seed), whole_batch(of, consumed)
    first = batch(of, source, consumed, step, 0, CPU)
    second = batch(of, source, consumed + step, 12 - step, 0, CPU)
    for part, value in whole.items():
        assert torch.equal(value, torch.cat([first[part], second[part]])), part


@settings(max_examples=60)
@given(st.integers(1, 300_000), st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 10**9))
def test_synthetic_samples_depend_on_seed_and_number_only(vocab: int, seq_len: int, seed: int, number: int) -> None:
    used = Synthetic(vocab, seq_len, seed)
    used.sample(number + 1)
    tokens, documents = used.sample(number)
    again = Synthetic(vocab, seq_len, seed).sample(number)
    assert np.array_equal(tokens, again[0])
    assert np.array_equal(documents, again[1])
    assert tokens.shape == documents.shape == (seq_len + 1,)
    assert tokens.min() >= 0
    assert tokens.max() < vocab
    assert documents[0] == 0
    assert set(np.diff(documents)) <= {0, 1}


def test_synthetic_samples_differ_by_seed_and_by_number() -> None:
    samples = {Synthetic(1000, 64, seed).sample(number)[0].tobytes() for seed in range(5) for number in range(5)}
    assert len(samples) == 25
