"""FLOPs by every formula: against the published tables, one step that five trainers print differently, and PyTorch."""

import csv
from importlib.resources import files

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear, silu
from torch.utils.flop_counter import FlopCounterMode

from trimaran.cost.flops import FORMULAS, TrainingStep, bigscience_approx_flops, model_flops, tflops_per_device
from trimaran.cost.identify import label_parameters, match_formulas, printed_as, tags_of
from trimaran.ledger.published import published
from trimaran.spec import Model, Setup, Trial, presets


@pytest.mark.parametrize(
    ("formula", "recompute", "tflops"),
    [
        ("bigscience-exact", "full", 150.05),
        ("bigscience-exact", "none", 112.5),
        ("bigscience-approx", "full", 144.4),
        ("model-causal", "full", 111.8),
        ("6n-attention", "full", 113.1),
    ],
)
def test_one_step_of_bloom_prints_as_five_different_numbers(formula: str, recompute: str, tflops: float) -> None:
    """BLOOM-176B, 384 GPUs, 104.50 s, as five trainers would print it (facts/bigscience.md)."""
    step = TrainingStep(presets.model("bloom-176b"), 2048, tp=4, recompute=recompute)  # type: ignore[arg-type]
    assert tflops_per_device(FORMULAS[formula](step), 104.50, 384) == pytest.approx(tflops, abs=0.05)


def _decimals() -> dict[str, int]:
    text = (files("trimaran") / "published" / "published.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["id"]: len(row["tflops"].partition(".")[2]) for row in rows if row["tflops"]}


DECIMALS = _decimals()
# Rows that the audit finds impossible or contradictory: no formula can give what they print.
INCONSISTENT = {"s000-L329", "s000-L330", "s000-L331", "s000-L341", "s001-L017", "s001-L018", "s001-L033", "s001-L034"}
INCONSISTENT |= {f"s003-L0{line}" for line in range(32, 43)}
CONSISTENT = [
    trial
    for trial in published(("published.csv",)).trials
    if trial.outcome.seconds and trial.outcome.tflops and trial.source.label not in INCONSISTENT
]


def test_there_are_published_rows_to_compare_with() -> None:
    assert len(CONSISTENT) == 126


@pytest.mark.parametrize("trial", CONSISTENT, ids=lambda trial: trial.source.label)
def test_published_tflops_follow_from_seconds_by_the_tables_formula(trial: Trial) -> None:
    """Within 0.1 % (0.7 % for Fugaku), or one unit of the last digit where a table prints three digits."""
    printed = trial.outcome.tflops or 0
    tags = tags_of(trial.outcome.tflops_formula, trial.setup)
    values = [printed_as(trial.setup, trial.outcome.seconds or 0, tag) for tag in tags]
    error = min(abs(value - printed) for value in values if value)
    relative = 0.007 if trial.setup.device == "a64fx" else 0.001
    last_digit = 10 ** -DECIMALS[trial.source.label] if DECIMALS[trial.source.label] < 2 else 0
    assert error <= max(relative * printed, last_digit)


def test_a_printed_figure_is_traced_to_its_formula() -> None:
    setup = Setup(layers=70, hidden=14336, vocab=250880, seq_len=2048, gbs=2048, devices=384, tp=4, recompute="full")
    assert match_formulas(setup, 104.5, 144.4)[0].tag == "approx-4"
    assert match_formulas(setup, 104.5, 112.54)[0].tag == "exact-3"
    assert {fit.tag for fit in match_formulas(setup, 104.5, 150.05)[:2]} == {"exact-4", "hardware"}
    assert label_parameters("104B") == 104e9
    assert label_parameters("huge") is None


class Tiny(nn.Module):
    """A decoder in plain GEMMs: PyTorch's counter misses fused attention on CPU."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        h, kv = model.hidden, model.kv_heads * model.head_dim
        self.model = model
        self.layers = nn.ModuleList()
        for _ in range(model.layers):
            sizes = {"q": (h, h), "k": (kv, h), "v": (kv, h), "o": (h, h)}
            sizes |= {"up": (model.ffn_hidden, h), "down": (h, model.ffn_hidden)}
            sizes |= {"gate": (model.ffn_hidden, h)} if model.mlp == "swiglu" else {}
            self.layers.append(nn.ParameterDict({name: nn.Parameter(torch.randn(s)) for name, s in sizes.items()}))
        self.head = nn.Parameter(torch.randn(model.vocab_rows(1), h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.attend(layer, x)
            up = linear(x, layer["up"])
            up = silu(linear(x, layer["gate"])) * up if "gate" in layer else silu(up)
            x = x + linear(up, layer["down"])
        return linear(x, self.head)

    def attend(self, layer: nn.ParameterDict, x: torch.Tensor) -> torch.Tensor:
        m, (batch, seq, _) = self.model, x.shape
        shape = (batch, seq, -1, m.head_dim)
        q, k, v = (linear(x, layer[n]).view(shape).transpose(1, 2) for n in "qkv")
        k, v = (t.repeat_interleave(m.heads // m.kv_heads, dim=1) for t in (k, v))
        scores = (q @ k.transpose(2, 3) / m.head_dim**0.5).softmax(dim=-1)
        return linear((scores @ v).transpose(1, 2).reshape(x.shape), layer["o"])


@pytest.mark.parametrize(
    "model",
    [
        Model(layers=3, hidden=64, heads=4, vocab=256, seq_len=32),
        Model(layers=2, hidden=64, heads=4, vocab=256, seq_len=32, ffn_hidden=80),
        Model(layers=2, hidden=64, heads=4, kv_heads=2, vocab=128, seq_len=16, mlp="swiglu", ffn_hidden=224),
    ],
    ids=["gpt", "lopsided", "llama"],
)
def test_model_flops_are_what_pytorch_counts(model: Model) -> None:
    """Forward and backward through a real model; the input needs its gradient too, as every layer's does."""
    tiny = Tiny(model)
    x = torch.randn(2, model.seq_len, model.hidden, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        tiny(x).sum().backward()
    assert counter.get_total_flops() == model_flops(TrainingStep(model, 2))


def test_lopsided_models_are_counted_by_their_true_width() -> None:
    """The '104B' with an FFN of 20480 does 55.8/103.1 of the work of the real one."""
    wide, twin = presets.model("gpt-104b-wide"), presets.model("gpt-104b-wide-ffn20480")
    ratio = bigscience_approx_flops(TrainingStep(twin, 1)) / bigscience_approx_flops(TrainingStep(wide, 1))
    assert ratio == pytest.approx(55.84 / 103.10, rel=1e-3)


def test_recompute_repeats_layers_or_attention_but_never_the_logits() -> None:
    """Independent of the code: per token and layer 24h² + 4sh forward; selective repeats 4sh."""
    model = Model(layers=4, hidden=128, heads=4, vocab=1280, seq_len=256)
    h, s, tokens = 128, 256, 256
    hardware = {r: FORMULAS["hardware"](TrainingStep(model, 1, 1, r)) for r in ("none", "selective", "full")}  # type: ignore[arg-type]
    assert hardware["selective"] - hardware["none"] == tokens * 4 * 4 * s * h
    assert hardware["full"] - hardware["none"] == tokens * 4 * (24 * h * h + 4 * s * h)


def test_a_column_of_batches_gives_a_column_of_flops() -> None:
    model, batches = presets.model("gpt-1b3"), np.array([1, 2, 512])
    for formula in FORMULAS.values():
        expected = [formula(TrainingStep(model, int(batch))) for batch in batches]
        assert formula(TrainingStep(model, batches)).tolist() == pytest.approx(expected)
