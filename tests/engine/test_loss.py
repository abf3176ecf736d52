"""The loss equals what NumPy and PyTorch compute from the definition, in one process and sharded over tensor ranks."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.pool import Pool
from tests.engine.stages import random_tokens, whole_stage
from trimaran.engine.model.init_weights import init_tensor_
from trimaran.engine.model.loss import LinearCrossEntropy
from trimaran.engine.model.transformer import Stage
from trimaran.engine.parallel.tensor_parallel import TensorAxis
from trimaran.spec import Layout, Model, own_engine
from trimaran.spec.tensors import stage_tensors

SINGLE = TensorAxis()

# --- A whole model ---------------------------------------------------------------------------------------------------


def test_the_loss_of_a_gpt_equals_its_definition_in_numpy() -> None:
    model = Model(layers=2, hidden=12, heads=3, ffn_hidden=20, vocab=29, seq_len=7)
    stage = whole_stage(model, dtype=torch.float32)
    tokens, targets = random_tokens(model, rows=2, seed=1), random_tokens(model, rows=2, seed=2)
    weights = {name: value.detach().double().numpy() for name, value in stage.named_parameters()}
    pairs = zip(tokens.numpy(), targets.numpy(), strict=True)
    expected = np.concatenate([numpy_losses(model, weights, *pair) for pair in pairs])
    one_each = torch.eye(tokens.numel()).unflatten(1, tokens.shape)  # all weight on one token, then on the next
    found = [stage(tokens, tokens, targets, weight).item() for weight in one_each]
    assert found == pytest.approx(expected, rel=1e-6)
    mean = stage(tokens, tokens, targets, torch.full(tokens.shape, 1 / tokens.numel()))
    assert mean.item() == pytest.approx(expected.mean(), rel=1e-6)


def numpy_losses(model: Model, w: dict[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray) -> list[float]:
    """One row, one token at a time, one head at a time."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = [w["embedding.word"][token] + w["embedding.position"][i] for i, token in enumerate(tokens)]
    for layer in range(model.layers):
        at = f"layers.{layer}"
        heads = [linear(f"{at}.attention.qkv", norm(f"{at}.attention_norm", v)).reshape(model.heads, 3, -1) for v in x]
        for i in range(len(x)):
            seen = []
            for head in range(model.heads):
                scores = [heads[i][head, 0] @ heads[j][head, 1] / np.sqrt(model.head_dim) for j in range(i + 1)]
                shares = np.exp(scores) / np.exp(scores).sum()
                seen.append(sum(share * heads[j][head, 2] for j, share in enumerate(shares)))
            x[i] = x[i] + linear(f"{at}.attention.out", np.concatenate(seen))
        for i in range(len(x)):
            y = linear(f"{at}.mlp.up", norm(f"{at}.mlp_norm", x[i]))
            gelu = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
            x[i] = x[i] + linear(f"{at}.mlp.down", gelu)
    logits = [w["embedding.word"][: model.vocab] @ norm("norm", v) for v in x]
    return [float(np.log(np.exp(z).sum()) - z[target]) for z, target in zip(logits, targets, strict=True)]


# --- Fused linear cross entropy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    x: Tensor
    matrix: Tensor  # padding rows included
    targets: Tensor
    weights: Tensor
    vocab: int


def case(tokens: int, hidden: int, vocab: int, rows: int, seed: int, padding: float = 7.5) -> Case:
    """Random, a third of the token weights zero; `padding` is what the rows above the vocabulary contain."""
    stream = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, hidden, generator=stream)
    matrix[vocab:] = padding
    weights = torch.rand(tokens, generator=stream) * (torch.rand(tokens, generator=stream) > 1 / 3)
    targets = torch.randint(vocab, (tokens,), generator=stream)
    return Case(torch.randn(tokens, hidden, generator=stream), matrix, targets, weights, vocab)


def reference(given: Case, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients by PyTorch in float64, without padding."""
    x, matrix = given.x.double().requires_grad_(), given.matrix.double().requires_grad_()
    each = F.cross_entropy(x @ matrix[: given.vocab].t(), given.targets, reduction="none")
    loss = (given.weights * each).sum()
    (loss * scale).backward()
    return loss.detach(), x.grad, matrix.grad


def engine(given: Case, scale: float, axis: TensorAxis = SINGLE) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients by the engine; on a tensor rank of its shard of the weight, and its partial sum of x's."""
    x = given.x.clone().requires_grad_()
    matrix = given.matrix.tensor_split(axis.size)[axis.rank].clone().requires_grad_()
    loss = LinearCrossEntropy.apply(x, matrix, given.targets, given.weights, given.vocab, axis)
    (loss * scale).backward()
    return loss.detach(), x.grad, matrix.grad


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """To fp32's precision of the terms, which are about 1: a sum of many may nearly cancel."""
    for value, right in zip(found, expected, strict=True):
        atol = 2e-6 * max(1.0, right.abs().max().item())
        torch.testing.assert_close(value.double(), right.double(), rtol=1e-5, atol=atol)


@settings(max_examples=60)
@given(
    tokens=st.integers(1, 400),
    hidden=st.integers(1, 24),
    vocab=st.integers(1, 150),
    extra=st.integers(0, 130),
    seed=st.integers(0, 2**32),
    chunk_logits=st.sampled_from([1, 2**14, 2**27]),
)
def test_loss_and_gradients_equal_pytorchs_in_any_number_of_chunks(
    tokens: int, hidden: int, vocab: int, extra: int, seed: int, chunk_logits: int
) -> None:
    """A chunk has at least 128 tokens, so the smallest setting gives up to four."""
    given_case = case(tokens, hidden, vocab, vocab + extra, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_engine, "CHUNK_LOGITS", chunk_logits)
        found = engine(given_case, scale=3.0)
    assert_equal(found, reference(given_case, scale=3.0))


@pytest.mark.parametrize("padding", [0.0, -1e4, 1e30])
def test_padding_has_no_effect_and_no_gradient(padding: float) -> None:
    """Not even by rounding: whatever the rows contain, results are bitwise the same."""
    loss, grad_x, grad_matrix = engine(case(50, 8, 100, 128, seed=1, padding=padding), scale=1.0)
    zero = engine(case(50, 8, 100, 128, seed=1, padding=0.0), scale=1.0)
    assert torch.equal(loss, zero[0])
    assert torch.equal(grad_x, zero[1])
    assert torch.equal(grad_matrix[:100], zero[2][:100])
    assert not grad_matrix[100:].any()


def test_tokens_of_weight_zero_get_no_gradient() -> None:
    given_case = case(90, 8, 100, 128, seed=2)
    silent = given_case.weights == 0
    assert 0 < silent.sum() < 90
    assert not engine(given_case, scale=1.0)[1][silent].any()


SHARDINGS = {  # tensor ranks, vocabulary, rows
    "two ranks": (2, 200, 256),
    "four ranks": (4, 301, 512),
    "a rank of padding only": (2, 100, 256),
    "one vocabulary row in all": (4, 1, 8),
}


@pytest.mark.parametrize("name", SHARDINGS)
def test_sharded_over_tensor_ranks_it_equals_the_whole(pool: Pool, name: str) -> None:
    ranks, vocab, rows = SHARDINGS[name]
    given_case = case(tokens=300, hidden=16, vocab=vocab, rows=rows, seed=3)
    results = pool.run(ranks, one_rank, given_case, ranks)
    loss, grad_x, grad_matrix = reference(given_case, scale=2.0)
    for found, _, _ in results:
        assert_equal((found,), (loss,))
    shares, parts = ([result[i] for result in results] for i in (1, 2))
    assert_equal((torch.stack(shares).sum(0), torch.cat(parts)), (grad_x, grad_matrix))


def one_rank(rank: int, given_case: Case, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    own_engine.CHUNK_LOGITS = 1  # three chunks; restored, because this process serves other tests
    try:
        return engine(given_case, 2.0, TensorAxis(ranks, rank, dist.group.WORLD))
    finally:
        own_engine.CHUNK_LOGITS = 2**27


@pytest.mark.parametrize("vocab", [100, 200])
def test_the_concatenated_logits_of_the_ranks_are_the_models(pool: Pool, vocab: int) -> None:
    """A rank has 128 rows: with 100 words the second one has no logits."""
    model = Model(layers=1, hidden=32, heads=4, vocab=vocab, seq_len=8)
    tokens = random_tokens(model, rows=2)
    parts = pool.run(2, rank_logits, model, 2, tokens)
    assert [part.shape[1] for part in parts] == [min(vocab, 128), max(vocab - 128, 0)]
    torch.testing.assert_close(torch.cat(parts, dim=1), rank_logits(0, model, 1, tokens), rtol=0, atol=1e-6)


def rank_logits(rank: int, model: Model, ranks: int, tokens: Tensor) -> Tensor:
    axis = TensorAxis(ranks, rank, dist.group.WORLD if ranks > 1 else None)
    stage = Stage(model, axis, range(model.layers), first=True, last=True)
    parameters = dict(stage.named_parameters())
    with torch.no_grad():
        for tensor in stage_tensors(model, Layout(tp=ranks), 0):
            local = parameters[tensor.name]
            offsets = [size * rank if dim == tensor.cut else 0 for dim, size in enumerate(local.shape)]
            init_tensor_(local, tensor, offsets, model, seed=0)
        return stage.logits(stage.activations(tokens, tokens))
