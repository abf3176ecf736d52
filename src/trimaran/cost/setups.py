"""Measured set-ups as Columns. A cost needs every number, so what a source leaves out gets a stated default."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.cost.columns import RECOMPUTE, SCHEDULE, STATE_BYTES, Columns, of_rows
from trimaran.spec import Cluster, Setup
from trimaran.spec.cluster import Precision
from trimaran.spec.trainer import Optimizer

Rows = npt.NDArray[np.int64]

# Documented in docs/cost-model.md. Megatron's own defaults where it has them.
DEFAULTS: dict[str, Any] = {
    "vocab": 51200,
    "seq_len": 2048,
    "zero": 0,
    "mbs": 1,
    "dp": 1,
    "tp": 1,
    "pp": 1,
    "virtual_stages": 1,
}
NEEDED = ("layers", "hidden", "gbs")


def missing(setup: Setup) -> list[str]:
    """Fields without which nothing can be predicted."""
    return [name for name in NEEDED if getattr(setup, name) is None]


def predictable(setup: Setup) -> bool:
    """Whether a measured row says its layout, and one that exists: more stages than layers are none."""
    known = not missing(setup) and setup.mbs is not None and setup.tp is not None and setup.pp is not None
    return known and (setup.pp or 1) <= (setup.layers or 0)


def slowdown(cluster: Cluster, date: str) -> float:
    """Of the recorded condition that held on this date; dates compare as printed (MM-DD)."""
    return next((c.slowdown for c in cluster.conditions if date and date <= c.until), 1.0)


def of_setups(setups: Sequence[Setup], cluster: Cluster, dates: Sequence[str] = ()) -> list[tuple[Rows, Columns]]:
    """Columns for each precision and optimizer among the set-ups, with the rows' places in the given order.

    Recompute is none unless stated, the MLP 4 x hidden, heads of 128; a split is weighted where only that divides.
    """
    groups: dict[tuple[Precision, Optimizer], list[int]] = {}
    for i, setup in enumerate(setups):
        optimizer: Optimizer = next((name for name in STATE_BYTES if name == setup.optimizer), "adam")
        groups.setdefault((precision_of(setup, cluster), optimizer), []).append(i)
    days = dates or [""] * len(setups)
    return [
        (np.array(places), of_rows([_row(setups[i], cluster, days[i]) for i in places], precision, optimizer))
        for (precision, optimizer), places in groups.items()
    ]


def _row(setup: Setup, cluster: Cluster, date: str) -> dict[str, float]:
    value = {name: getattr(setup, name) for name in DEFAULTS}
    value = {name: DEFAULTS[name] if known is None else known for name, known in value.items()}
    hidden, layers = setup.hidden or 0, setup.layers or 0
    heads = setup.heads or max(1, hidden // 128)
    swiglu = setup.mlp == "swiglu"
    stages = value["pp"] * value["virtual_stages"]
    return {
        "layers": layers,
        "hidden": hidden,
        "ffn": setup.ffn_hidden or 4 * hidden,
        "heads": heads,
        "kv_heads": setup.kv_heads or heads,
        "vocab": value["vocab"],
        "seq": value["seq_len"],
        "matrices": 3 if swiglu else 2,
        "tied": not swiglu,
        "dp": value["dp"],
        "tp": value["tp"],
        "pp": value["pp"],
        "virtual": value["virtual_stages"],
        "mbs": value["mbs"],
        "gbs": setup.gbs or 0,
        "zero": value["zero"],
        "recompute": RECOMPUTE[setup.recompute or "none"],
        "schedule": SCHEDULE["interleaved" if value["virtual_stages"] > 1 else "1f1b"],
        "sequence_parallel": bool(setup.sequence_parallel),
        "weighted": layers % stages != 0 and (layers + 2) % stages == 0,
        "devices_per_node": setup.devices_per_node or cluster.devices_per_node,
        "slowdown": slowdown(cluster, date),
    }


def precision_of(setup: Setup, cluster: Cluster) -> Precision:
    """As stated; else bf16, fp16 or, on a CPU, fp32, whichever the device has first."""
    peaks = cluster.device.peak_tflops
    if setup.precision in peaks:
        return setup.precision
    if not cluster.device.is_gpu:
        return "fp32"
    return "bf16" if "bf16" in peaks else "fp16"
