"""What torchtitan prints before its first step (device, mesh, model, batch), and the Setup that follows from it."""

import math
import re
from collections.abc import Mapping
from typing import Any

from trimaran.ledger.logs.usable import usable
from trimaran.spec import Setup

Facts = dict[str, tuple[str, ...]]

# The lines that only a start of the program prints.
STARTS = ("start", "device", "mesh", "parallelism")
_PATTERNS = {
    "start": re.compile(r"Starting job: (.*)"),
    "device": re.compile(r"\b[A-Z]+ capacity: (.+?) with [\d.]+GiB"),
    "mesh": re.compile(r"device mesh with \[([^\]]*)\], \[([\d, ]*)\]"),
    "parallelism": re.compile(r"device mesh with parallelism: ([\w=, ]+)"),
    "batch": re.compile(r"local batch size (\d{1,12}), global batch size (\d{1,12}),.*?sequence length (\d{1,12})\b"),
    "size": re.compile(r"Model (\S+) (\S+) \S*size: ([\d,]+) total parameters"),
    "shape": re.compile(r"Building (\S+) (\S+) with \w*Args\((.*)\)"),
    "recompute": re.compile(r"Applied (full|selective)(?:AC)? activation checkpointing", re.IGNORECASE),
    "schedule": re.compile(r"Using pipeline schedule (\S+) with (\d{1,9}) microbatches and (\d{1,9}) stages"),
    "sharding": re.compile(r"Applied (FSDP|HSDP|DDP)\b"),
    "float8": re.compile(r"Swapped to (Float8)Linear"),
}
# Nearly every line has none of these, and a pattern costs ten times as much.
_WORDS = (
    "Starting job",
    "capacity: ",
    "device mesh",
    "batch size",
    "total param",
    "Building",
    "Applied",
    "Using",
    "Sw",
)


def fact(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The name of a fact and its values, if the line states one."""
    if any(word in text for word in _WORDS):
        for name, pattern in _PATTERNS.items():
            if found := pattern.search(text):
                return name, found.groups()
    return None


def setup_of(facts: Facts) -> Setup:
    axes = _axes(facts)
    values: dict[str, Any] = {"framework": "torchtitan", **_degrees(axes), **_batch(facts, axes), **_shape(facts)}
    if "device" in facts:
        values["device"] = facts["device"][0]
    if "size" in facts:
        values["size_label"] = facts["size"][1]
    if "recompute" in facts:
        values["recompute"] = facts["recompute"][0].lower()
    if "float8" in facts:
        values["precision"] = "fp8"
    if "sharding" in facts and values.get("pp"):
        # FSDP frees gathered weights after the forward pass (ZeRO 3), but keeps them between pipelined micro batches.
        sharded = 3 if values["pp"] == 1 else 2
        values["zero"] = 0 if facts["sharding"][0] == "DDP" else sharded
    if "schedule" in facts and values.get("pp"):
        values["virtual_stages"] = int(facts["schedule"][2]) // values["pp"] or None
    return usable(Setup, values)


def remarks_of(facts: Facts) -> list[str]:
    """What a Setup has no field for, or what was inferred and not printed."""
    remarks = []
    context = _axes(facts).get("cp", 1)
    if context > 1:
        remarks.append(f"Context parallel over {context} devices, besides dp, tp and pp.")
    if facts.get("sharding", ("",))[0] in ("FSDP", "HSDP"):
        remarks.append("The ZeRO stage is FSDP's default: 3, or 2 with pipeline stages.")
    return remarks


def _axes(facts: Facts) -> dict[str, int]:
    """Degree of every axis of the mesh; expert axes lie inside the data-parallel ones and are not counted."""
    if "mesh" in facts:
        names = re.findall(r"\w+", facts["mesh"][0])
        sizes = [int(size) for size in re.findall(r"\d{1,9}", facts["mesh"][1])]
        axes = dict(zip(names, sizes, strict=True)) if len(names) == len(sizes) else {}
    elif "parallelism" in facts:
        pairs = re.findall(r"(\w+)=(\d{1,9})\b", facts["parallelism"][0])
        axes = {name: int(size) for name, size in pairs if name not in ("ep", "etp")}
    else:
        axes = {}
    return axes if all(axes.values()) else {}


def _degrees(axes: Mapping[str, int]) -> dict[str, int]:
    if not axes:
        return {}
    data = math.prod(size for name, size in axes.items() if name.startswith("dp"))
    return {"devices": math.prod(axes.values()), "dp": data, "tp": axes.get("tp", 1), "pp": axes.get("pp", 1)}


def _batch(facts: Facts, axes: Mapping[str, int]) -> dict[str, int | None]:
    """With a pipeline the local batch is split into as many micro batches as the schedule prints."""
    if "batch" not in facts:
        return {}
    local, size, length = (int(value) for value in facts["batch"])
    micro_batches = 0 if axes.get("pp", 1) > 1 else 1
    if "schedule" in facts:
        micro_batches = int(facts["schedule"][1])
    micro = local // micro_batches if micro_batches and axes else 0
    return {"mbs": micro or None, "gbs": size or None, "seq_len": length or None}


def _shape(facts: Facts) -> dict[str, Any]:
    if "shape" not in facts:
        return {}
    family, label, listed = facts["shape"]
    numbers = {name: float(value) for name, value in re.findall(r"(\w+)=(\d{1,12}(?:\.\d+)?)\b", listed)}
    names = {"dim": "hidden", "n_layers": "layers", "n_heads": "heads", "n_kv_heads": "kv_heads", "vocab_size": "vocab"}
    shape: dict[str, Any] = {ours: int(numbers[name]) or None for name, ours in names.items() if name in numbers}
    if "n_kv_heads=None" in listed:
        shape["kv_heads"] = shape.get("heads")
    shape["size_label"] = label
    if family.startswith("llama"):
        shape |= {"mlp": "swiglu", "ffn_hidden": _llama_ffn(numbers)}
    return shape


def _llama_ffn(numbers: Mapping[str, float]) -> int | None:
    """Llama's rule: two thirds of 4·dim, times a factor, rounded up to a multiple."""
    if not numbers.get("dim") or not numbers.get("multiple_of"):
        return None
    width = int(int(2 * 4 * numbers["dim"] / 3) * numbers.get("ffn_dim_multiplier", 1.0))
    multiple = int(numbers["multiple_of"])
    return -(-width // multiple) * multiple
