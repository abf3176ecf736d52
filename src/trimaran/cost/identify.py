"""Which formula did a table use? TFLOPs x devices x seconds are FLOPs; the formula that gives the same is the one.

A tag names a formula together with its factor, as published tables need: approx-4 is BigScience's approximation with
recompute (f = 4). `label` formulas take the size as printed ("1.3B"), as one-liners in notes do.
"""

import re
from dataclasses import dataclass

from trimaran.cost.flops import FORMULAS, TrainingStep, tflops_per_device
from trimaran.spec import Setup
from trimaran.spec.trainer import Recompute

# tag -> (formula, recompute that gives its factor); None: as the row itself says.
TAGS: dict[str, tuple[str, Recompute | None]] = {
    "exact-4": ("bigscience-exact", "full"),
    "exact-3": ("bigscience-exact", "none"),
    "approx-4": ("bigscience-approx", "full"),
    "approx-3": ("bigscience-approx", "none"),
    "model": ("model", None),
    "model-causal": ("model-causal", None),
    "hardware": ("hardware", None),
    "6n": ("6n", None),
    "6n-attention": ("6n-attention", None),
}
NEED_VOCAB = {"bigscience-exact", "model", "model-causal", "hardware", "6n", "6n-attention"}


@dataclass(frozen=True)
class FormulaMatch:
    """A formula's answer beside the printed one; `error` = formula / printed - 1."""

    tag: str
    tflops: float
    error: float


def label_parameters(label: str | None) -> float | None:
    """'104B' -> 104e9; '1.3B', '350M', '1T' likewise."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d*)?|\.\d+)\s*([MBT])\s*", label or "", re.IGNORECASE)
    return float(match[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()] if match else None


def step_flops(setup: Setup, tag: str) -> float | None:
    """FLOPs of one step by a tag, or None where the set-up does not say enough."""
    if setup.gbs is None or setup.seq_len is None:
        return None
    if tag.startswith("label-"):
        parameters = label_parameters(setup.size_label)
        return None if parameters is None else int(tag[-1]) * 2 * parameters * setup.gbs * setup.seq_len
    formula, recompute = TAGS[tag]
    model = setup.to_model()
    if model is None or (formula in NEED_VOCAB and setup.vocab is None):
        return None
    if formula == "hardware" and setup.recompute is None:
        return None
    step = TrainingStep(model, setup.gbs, setup.tp or 1, recompute or setup.recompute or "none")
    return float(FORMULAS[formula](step))


def tags_of(printed: str | None, setup: Setup) -> tuple[str, ...]:
    """The tags a source may mean by the name it gives: 'exact' leaves the factor to the row's own recompute."""
    factor = "3" if setup.recompute == "none" else "4"
    name = printed or ""
    if name in ("exact", "bigscience-exact"):
        return (f"exact-{factor}",)
    if name == "bigscience-approx":
        return (f"approx-{factor}", f"label-{factor}")
    if name in ("approx-4", "approx-3"):
        return (name, name.replace("approx", "label"))
    return (name,) if name in TAGS else ()


def printed_as(setup: Setup, seconds: float, tag: str) -> float | None:
    """TFLOP/s per device that a source using this formula prints."""
    flops = step_flops(setup, tag)
    return None if flops is None or setup.devices is None else tflops_per_device(flops, seconds, setup.devices)


def match_formulas(
    setup: Setup, seconds: float, tflops: float, tags: tuple[str, ...] = (*TAGS, "label-4", "label-3")
) -> list[FormulaMatch]:
    """Every formula of these that can be computed, the nearest first; of equals, the plainest."""
    found = []
    for tag in tags:
        value = printed_as(setup, seconds, tag)
        if value is not None:
            found.append(FormulaMatch(tag, value, value / tflops - 1))
    return sorted(found, key=lambda fit: round(abs(fit.error), 6))
