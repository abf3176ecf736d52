"""Measured set-ups as Columns. A cost needs every number, so what a source leaves out gets a stated default."""

from collections.abc import Sequence

from trimaran.cost.columns import RECOMPUTE, SCHEDULE, Columns, of_rows
from trimaran.spec import Cluster, Mistake, Setup

# Documented in docs/cost-model.md. Megatron's own defaults where it has them.
DEFAULTS = {"vocab": 51200, "seq_len": 2048, "zero": 0, "mbs": 1, "dp": 1, "tp": 1, "pp": 1, "virtual_stages": 1}
NEEDED = ("layers", "hidden", "gbs")


def missing(setup: Setup) -> list[str]:
    """Fields without which nothing can be predicted."""
    return [name for name in NEEDED if getattr(setup, name) is None]


def slowdown(cluster: Cluster, date: str) -> float:
    """Of the recorded condition that held on this date; dates compare as printed (MM-DD)."""
    return next((c.slowdown for c in cluster.conditions if date and date <= c.until), 1.0)


def of_setups(setups: Sequence[Setup], cluster: Cluster, dates: Sequence[str] = ()) -> Columns:
    """One row a set-up; all in one precision. Recompute is none unless stated, the MLP 4 x hidden, heads of 128."""
    rows = []
    precisions = {_precision(setup, cluster) for setup in setups}
    if len(precisions) > 1:
        raise Mistake(f"These rows mix the precisions {', '.join(sorted(precisions))}; predict them one by one.")
    for setup, date in zip(setups, dates or [""] * len(setups), strict=True):
        known = {name: getattr(setup, name) for name in DEFAULTS}
        value = {name: DEFAULTS[name] if known[name] is None else known[name] for name in DEFAULTS}
        hidden, layers, gbs = setup.hidden or 0, setup.layers or 0, setup.gbs or 0
        heads = setup.heads or max(1, hidden // 128)
        swiglu = setup.mlp == "swiglu"
        per_node = setup.devices_per_node or cluster.devices_per_node
        rows.append(
            {
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
                "gbs": gbs,
                "zero": value["zero"],
                "recompute": RECOMPUTE[setup.recompute or "none"],
                "schedule": SCHEDULE["interleaved" if value["virtual_stages"] > 1 else "1f1b"],
                "sequence_parallel": bool(setup.sequence_parallel),
                "weighted": value["pp"] > 1 and layers % (value["pp"] * value["virtual_stages"]) != 0,
                "devices_per_node": per_node,
                "slowdown": slowdown(cluster, date),
            }
        )
    return of_rows(rows, precisions.pop(), setups[0].optimizer or "adam")  # type: ignore[arg-type]


def _precision(setup: Setup, cluster: Cluster) -> str:
    """As stated; else the device's fastest 16-bit format it has, else fp32."""
    peaks = cluster.device.peak_tflops
    if setup.precision in peaks:
        return str(setup.precision)
    return "bf16" if "bf16" in peaks else "fp16" if "fp16" in peaks and cluster.device.units >= 64 else "fp32"
