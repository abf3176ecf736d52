"""trimaran probe compare: two cluster files side by side, such as before and after a fix."""

from typing import Annotated, Any

import typer
from rich.text import Text

from trimaran.cli.show import JsonOption, cell, print_json, print_table
from trimaran.spec import Cluster
from trimaran.spec.files import load_cluster

DIFFERENT = 0.05  # probes of an unchanged machine differ by less
# Suffixes of those where less is better; of everything else more is.
LESS_IS_BETTER = (
    "_us",
    "_ms",
    "half_tokens",
    "half_width",
    "slowdown",
    "exponent",
    "context_gib",
    "communicator_gib",
    "slack",
    "state_share",
    "activation_share",
    "buffer_share",
)

COUNTS = ("device.units", "nodes", "devices_per_node")  # neither better nor worse


def compare(
    before: Annotated[str, typer.Argument(help="A cluster file or a preset's name.")],
    after: Annotated[str, typer.Argument(help="The one to compare with it.")],
    json: JsonOption = False,
) -> None:
    """Show the figures of two clusters side by side with their ratio, coloured where they differ by more than 5 %.

    Example: `trimaran probe compare before.yaml after.yaml`
    """
    old, new = _figures(load_cluster(before)), _figures(load_cluster(after))
    names = list(dict.fromkeys([*old, *new]))
    if json:
        print_json({name: _record(old.get(name), new.get(name)) for name in names})
        return
    rows = [
        (name, cell(old.get(name), ".4g"), cell(new.get(name), ".4g"), _ratio(name, old.get(name), new.get(name)))
        for name in names
    ]
    print_table("Clusters", ("", before, after, "ratio"), rows)


def _figures(cluster: Cluster) -> dict[str, float]:
    """Every measured value by its name in the file."""
    device = cluster.device
    values: dict[str, float] = {}
    for name in ("peak_tflops", "matmul_tflops"):
        values |= {f"device.{name}.{precision}": value for precision, value in getattr(device, name).items()}
    values |= {f"device.{name}": getattr(device, name) for name in ("memory_gib", "memory_gb_per_s", "units")}
    for link in ("inside", "between"):
        values |= {f"{link}.{name}": getattr(getattr(cluster, link), name) for name in ("gb_per_s", "latency_us")}
    values |= {name: getattr(cluster, name) for name in ("nodes", "devices_per_node", "context_gib", "slack")}
    if cluster.communicator_gib is not None:
        values["communicator_gib"] = cluster.communicator_gib
    return values | {f"constants.{name}": value for name, value in {**cluster.probed, **cluster.constants}.items()}


def _record(old: float | None, new: float | None) -> dict[str, Any]:
    return {"before": old, "after": new, "ratio": new / old if old and new is not None else None}


def _ratio(name: str, old: float | None, new: float | None) -> Text | str:
    ratio = _record(old, new)["ratio"]
    if ratio is None:
        return ""
    if abs(ratio - 1) <= DIFFERENT or name in COUNTS:
        return f"{ratio:.2f}"
    better = (ratio < 1) == name.endswith(LESS_IS_BETTER)
    return Text(f"{ratio:.2f}", "green" if better else "red")
