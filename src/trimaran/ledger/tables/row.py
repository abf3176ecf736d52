"""From a row of a table, with what is stated around it, to a Trial."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from trimaran.ledger.reading import trial_id
from trimaran.ledger.tables import cells
from trimaran.spec import Outcome, Setup, Source, Trial

# Which quantity a column holds: the spellings of three dialects of notes, and of files like them.
# Keys are fields of Setup and Outcome, or one of: memory, freq, async, notes, skip.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "nodes": ("nodes", "nnodes"),
    "devices": ("devices", "gpus", "ngpus"),
    "size_label": ("size", "model size", "params"),
    "layers": ("layers", "nlayers", "lay ers"),
    "hidden": ("hidden", "nhidden", "hidden size"),
    "ffn_hidden": ("ffn",),
    "heads": ("heads", "nheads", "num attention heads", "attention heads", "atten heads"),
    "seq_len": ("seq", "seq len"),
    "zero": ("zero", "zs", "zero stage"),
    "dp": ("dp",),
    "tp": ("tp",),
    "pp": ("pp",),
    "mp": ("mp",),
    "mbs": ("mbs", "micro bs", "micro batch"),
    "gbs": ("gbs", "bs", "global bs", "global batch"),
    "recompute": ("ac",),
    "memory": ("mem", "memory"),
    "seconds": ("sec/it", "s/it", "speed", "seconds"),
    "milliseconds": ("ms/it",),
    "tflops": ("tflops", "tflops /gpu", "tflops/gpu"),
    "freq": ("freq",),
    "async": ("async",),
    "notes": ("notes", "date"),
    "skip": ("est aggr petaflops", "tflops %", "tflops aggreg"),
}
QUANTITY = {spelling: quantity for quantity, spellings in SPELLINGS.items() for spelling in spellings}
RESULTS = {"seconds", "milliseconds", "tflops", "memory"}
COUNTS = {"nodes", "devices", "layers", "hidden", "ffn_hidden", "heads", "seq_len", "dp", "tp", "pp", "mbs", "gbs"}


def quantities(header: tuple[str, ...]) -> list[str | None]:
    """The quantity in each column, or None for a column Trimaran does not know."""
    plain = [re.sub(r"[`*.\[\]()]", "", name).replace("-", " ").replace("_", " ") for name in header]
    names = [QUANTITY.get(" ".join(name.lower().split())) for name in plain]
    if "mp" in names and "tp" not in names and "pp" in names:
        # Fugaku's tables say MP for tensor parallel; others use it for TP x PP, beside a TP column.
        names = ["tp" if name == "mp" else name for name in names]
    return names


def setup_values(row: Mapping[str, str], where: str) -> dict[str, Any]:
    """The columns of a Setup that the row has."""
    values: dict[str, Any] = {}
    for name, cell in row.items():
        if name in COUNTS:
            values[name] = cells.count(cell, f"{where}, column {name},")
    if "zero" in row:
        zero = cells.number(row["zero"], f"{where}, column zero,")
        values["zero"] = None if zero is None else int(zero)
    if row.get("size_label"):
        values["size_label"] = row["size_label"]
    if (checkpointed := row.get("recompute", "").strip().lower()) in ("yes", "no"):
        values["recompute"] = "full" if checkpointed == "yes" else "none"
    if "freq" in row:
        values["freq_ghz"] = cells.number(row["freq"], f"{where}, column freq,")
    if (is_async := row.get("async", "").strip().lower()) in ("yes", "no"):
        values["environment"] = {"CUDA_LAUNCH_BLOCKING": "0" if is_async == "yes" else "1"}
    return {name: value for name, value in values.items() if value is not None}


def outcome(row: Mapping[str, str], where: str) -> Outcome:
    state, words = cells.status([row.get(name, "") for name in ("memory", "seconds", "tflops", "notes")])
    seconds = cells.number(row.get("seconds", ""), f"{where}, seconds,")
    if "milliseconds" in row and (milliseconds := cells.number(row["milliseconds"], f"{where}, milliseconds,")):
        seconds = milliseconds / 1000
    notes = row.get("notes", "")
    memory = cells.gibibytes(row.get("memory", ""), f"{where}, memory,")
    tflops = cells.number(row.get("tflops", ""), f"{where}, TFLOPs,")
    if memory is None and cells.WITH_UNIT.search(notes):  # '27GB (same conf …)'; a bare number may be anything
        memory = cells.gibibytes(notes, f"{where}, notes,")
    memory, tflops, seconds = (value or None for value in (memory, tflops, seconds))
    values = {"status": state, "reason": words, "seconds": seconds, "memory_gib": memory, "tflops": tflops}
    return Outcome.of(values, where)


def complete(values: dict[str, Any], devices_per_node: int | None) -> dict[str, Any]:
    """Compute missing counts: devices and nodes from each other, dp from the devices."""
    known = dict(values)
    per_node = known.setdefault("devices_per_node", devices_per_node)
    if known.get("devices") is None and known.get("nodes") and per_node:
        known["devices"] = known["nodes"] * per_node
    if known.get("nodes") is None and known.get("devices") and per_node:
        known["nodes"] = -(-known["devices"] // per_node)
    parts = (known.get("tp") or 0) * (known.get("pp") or 0)
    if known.get("dp") is None and known.get("devices") and parts and known["devices"] % parts == 0:
        known["dp"] = known["devices"] // parts
    return {name: value for name, value in known.items() if value is not None}


def usual_devices_per_node(rows: list[dict[str, Any]]) -> int | None:
    """dp x tp x pp / nodes, where most rows of a table agree on it."""
    counts: Counter[int] = Counter()
    for row in rows:
        if all(row.get(name) for name in ("dp", "tp", "pp", "nodes")):
            devices = row["dp"] * row["tp"] * row["pp"]
            if devices % row["nodes"] == 0:
                counts[devices // row["nodes"]] += 1
    agreed, times = counts.most_common(1)[0] if counts else (0, 0)
    return agreed if times * 2 > len(rows) else None


def trial(setup: Setup, result: Outcome, source: Source, seen: Counter[str]) -> Trial:
    """The id is a hash of what was printed, without the line, so text added above a table changes nothing."""
    content = trial_id(source.kind, source.section, setup.model_dump(), result.model_dump(), source.date, source.note)
    seen[content] += 1
    return Trial(id=trial_id(content, seen[content]), setup=setup, outcome=result, source=source)
