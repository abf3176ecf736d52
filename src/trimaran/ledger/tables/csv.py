"""CSV files of measurements: the columns of the published figures, of `trimaran results --csv`, and of vTrain."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from trimaran.ledger.reading import Reading
from trimaran.ledger.tables import cells, row
from trimaran.spec import Mistake, Outcome, Setup, Source, Trial
from trimaran.spec.mistake import did_you_mean
from trimaran.spec.trial import Status

# Column of the file -> field of Setup or Outcome. `trimaran results --csv` writes these, in this order.
SETUP_COLUMNS = {
    **{name: name for name in ("framework", "device", "devices_per_node", "nodes", "devices", "size_label")},
    **{name: name for name in ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "mlp", "seq_len", "vocab")},
    **{name: name for name in ("dp", "tp", "pp")},
    "vpp": "virtual_stages",
    "zero_stage": "zero",
    **{name: name for name in ("mbs", "gbs", "recompute", "sequence_parallel", "precision", "optimizer")},
}
OUTCOME_COLUMNS = {
    "mem_gb": "memory_gib",
    "sec_per_it": "seconds",
    "sec_low": "seconds_low",
    "sec_high": "seconds_high",
    **{name: name for name in ("iterations", "tokens_per_second", "tflops", "tflops_formula", "status", "reason")},
}
VTRAIN_COLUMNS = {
    "# gpus": "devices",
    "global batch": "gbs",
    "micro batch": "mbs",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "seq_len",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
}
TEXT = {"framework", "device", "size_label", "precision", "mlp"}
OTHER = {"zero_stage", "act_ckpt", "recompute", "optimizer", "env", "sequence_parallel"}  # each parsed in its own way
COUNTS = {**{c: f for c, f in SETUP_COLUMNS.items() if c not in TEXT | OTHER}, **VTRAIN_COLUMNS}
WORDS = {"status", "reason", "tflops_formula"}
RESULTS = {"sec_per_it", "iteration time (ms)", "tflops", "mem_gb", "status"}
SOURCE = {"id", "source_file", "section", "line", "date", "notes"}
JUDGEMENT = {"anomaly", "fixed_json"}  # somebody's verdict on the row, which the audit must not see
KNOWN = set(COUNTS) | TEXT | OTHER | set(OUTCOME_COLUMNS) | RESULTS | SOURCE | JUDGEMENT

STATUSES: dict[str, Status] = {"ok": "ok", "oom": "oom", "hang": "hang", "fail": "fail", "may_hang": "ok", "": "ok"}
STATUSES |= {"timeout": "timeout", "cancelled": "cancelled", "lost": "lost", "running": "running", "pending": "pending"}

Kind = Literal["csv", "published"]


def is_csv(head: str) -> bool:
    return len(KNOWN.intersection(_header(head))) >= 3


def read_csv(text: str, file: str, kind: Kind = "csv", *, needs_results: bool = True) -> Reading:
    """Rows of measurements; without `needs_results` rows of configurations, where unknown columns are ignored."""
    names = _header(text)
    if not names:
        raise Mistake(f"{file} is empty, or its first line is not that of a CSV.")
    if needs_results:
        _check_columns(names, file)
    trials: list[Trial] = []
    seen: Counter[str] = Counter()
    for line, values in _rows(text, file):
        if len(values) != len(names):
            raise Mistake(f"{file}:{line} has {len(values)} values under {len(names)} columns.")
        trials.append(_trial(dict(zip(names, values, strict=True)), file, line, kind, seen))
    return Reading(tuple(trials))


def _rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Rows below the header that are not empty, with their line numbers."""
    reader = csv.reader(io.StringIO(text, newline=""))  # a stray CR ends a line too
    try:
        next(reader)
        for values in reader:
            if any(values):
                yield reader.line_num, values
    except csv.Error as error:
        raise Mistake(f"{file}:{reader.line_num} is not valid CSV: {error}.") from None


def _header(text: str) -> list[str]:
    first = re.split(r"[\r\n]", text.lstrip("\ufeff"), maxsplit=1)[0]
    try:
        return [name.strip().lower() for name in next(csv.reader([first]), [])]
    except csv.Error:  # a field of more than 128 KiB
        return []


def _check_columns(names: list[str], file: str) -> None:
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        listed = ", ".join(repr(name) for name in unknown)
        raise Mistake(f"{file} has unknown columns: {listed}.{did_you_mean(unknown[0], KNOWN)}")
    if len(set(names)) < len(names):
        raise Mistake(f"{file} has two columns of the same name.")
    if not RESULTS & set(names):
        raise Mistake(f"{file} has no column of results: one of sec_per_it, tflops, mem_gb or status is needed.")


def _trial(values: dict[str, str], file: str, line: int, kind: Kind, seen: Counter[str]) -> Trial:
    where, section = f"{file}:{line}", values.get("section", "")
    source = Source(
        kind=kind,
        file=file,
        line=line,
        section=section,
        table=f"{file}: {section}".rstrip(": "),
        label=values.get("id", ""),
        date=values.get("date", ""),
        note=values.get("notes", ""),
    )
    setup = Setup.of(_setup(values, where), where)
    return row.trial(setup, Outcome.of(_outcome(values, where), where), source, seen)


def _setup(values: dict[str, str], where: str) -> dict[str, Any]:
    setup: dict[str, Any] = {}
    for name, cell in values.items():
        if name in COUNTS:
            setup[COUNTS[name]] = cells.count(cell, f"{where}, column {name},")
        elif name in TEXT and cell:
            setup[name] = cell
    zero = cells.number(values.get("zero_stage", ""), f"{where}, column zero_stage,")
    setup["zero"] = None if zero is None else int(zero)
    setup["recompute"] = values.get("recompute") or {"true": "full", "false": "none"}.get(values.get("act_ckpt", ""))
    setup["sequence_parallel"] = {"true": True, "false": False}.get(values.get("sequence_parallel", "").lower())
    setup["optimizer"] = _optimizer(values.get("optimizer", ""))
    environment = dict(re.findall(r"(\w+)=(\S+)", values.get("env", "")))
    if freq := environment.pop("freq", None):
        setup["freq_ghz"] = cells.number(freq, f"{where}, column env,")
    return row.complete({**setup, "environment": environment}, None)


def _outcome(values: dict[str, str], where: str) -> dict[str, Any]:
    def quantity(name: str) -> float | None:
        return cells.number(values.get(name, ""), f"{where}, column {name},") or None

    state = values.get("status", "").strip().lower()
    if state not in STATUSES:
        raise Mistake(f"{where}, column status, is {state!r}.{did_you_mean(state, STATUSES)}")
    outcome: dict[str, Any] = {field: quantity(name) for name, field in OUTCOME_COLUMNS.items() if name not in WORDS}
    if milliseconds := quantity("iteration time (ms)"):
        outcome["seconds"] = milliseconds / 1000
    outcome["status"] = STATUSES[state]
    outcome["reason"] = "may hang" if state == "may_hang" else values.get("reason", "")
    outcome["tflops_formula"] = values.get("tflops_formula") or None
    return outcome


def _optimizer(text: str) -> str | None:
    plain = text.lower()
    if "bnb" in plain or "8bit" in plain or "8-bit" in plain:
        return "adam-8bit"
    if "fused" in plain:
        return "fused-adam"
    return "adam" if "adam" in plain else (text or None)
