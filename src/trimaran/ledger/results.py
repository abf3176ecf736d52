"""Results of a query on the ledger, ranked by time, because that is what a run costs."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.ledger.query import Filter
from trimaran.ledger.store import Ledger
from trimaran.ledger.tables.csv import OUTCOME_COLUMNS, SETUP_COLUMNS
from trimaran.spec import Mistake, Trial

FILTER = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
SHORT = {"size": "size_label", "sec": "seconds", "mem": "memory_gib", "section": "source_section"}
RANK = "rank"  # seconds per iteration, or per sample where batches differ
MODEL = ("device", "layers", "hidden", "size_label", "seq_len")  # what must agree for times to be comparable
NOTES_HEADER = ("Nodes", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs", "Notes")


@dataclass(frozen=True)
class Results:
    """Trials in order; `best`: the fastest of each model; `replaced`: printed trials that have a corrected one."""

    trials: list[Trial]
    found: int
    ranked_by: str
    best: frozenset[str]
    replaced: frozenset[str]


def parse_filter(text: str) -> Filter:
    """'tp=4', 'mbs>=2', 'status!=ok', 'memory_gib=unknown' as a Filter."""
    match = FILTER.fullmatch(text)
    if match is None:
        raise Mistake(f"{text!r} is no condition; write a column, = != < <= > or >=, and a value, such as tp=4.")
    name, operator, value = SHORT.get(match[1], match[1]), match[2], match[3]
    unknown = value in ("unknown", "") or (value == "none" and name != "recompute")  # recompute=none is a value
    return Filter(name, operator, None if unknown else value)


def results(
    ledger: Ledger, where: Sequence[Filter], order: str = RANK, descending: bool = False, limit: int | None = None
) -> Results:
    column = ranking(ledger, where) if order == RANK else SHORT.get(order, order)
    trials = ledger.trials(where, column, descending, limit)
    replaced = frozenset(row[0] for row in ledger.rows(("corrects",), (Filter("corrects", "!=", None),)))
    best = _best(trials, replaced, per_sample=column != "seconds")
    return Results(trials, ledger.count(where), column, best, replaced)


def ranking(ledger: Ledger, where: Sequence[Filter]) -> str:
    """The column that makes these trials comparable: an iteration's time, or a sample's where batches differ."""
    batches = ledger.groups(("gbs",), [*where, Filter("seconds", "!=", None)])
    return "seconds" if len(batches) <= 1 else "seconds_per_sample"


def _best(trials: Sequence[Trial], replaced: frozenset[str], per_sample: bool) -> frozenset[str]:
    """The fastest successful trial of each model among these."""
    fastest: dict[Any, tuple[float, str]] = {}
    for trial in trials:
        seconds, samples = trial.outcome.seconds, trial.setup.gbs if per_sample else 1
        if trial.outcome.status != "ok" or seconds is None or samples is None or trial.id in replaced:
            continue
        model = tuple(getattr(trial.setup, name) for name in MODEL)
        time = seconds / samples
        if model not in fastest or time < fastest[model][0]:
            fastest[model] = time, trial.id
    return frozenset(id_ for _, id_ in fastest.values())


def notes_row(trial: Trial) -> tuple[str, ...]:
    """A trial in the form of the tuning notes' tables."""
    setup, outcome = trial.setup, trial.outcome
    notes = [trial.source.date, outcome.status if outcome.status != "ok" else outcome.reason]
    if outcome.straggler:
        notes.append(outcome.straggler)
    if trial.corrections:
        notes.append("corrected: " + ", ".join(f"{name}={value}" for name, value in trial.corrections.items()))
    columns = (setup.nodes, setup.size_label, setup.dp, setup.tp, setup.pp, setup.mbs, setup.gbs)
    return (
        *("" if value is None else str(value) for value in columns),
        "" if outcome.memory_gib is None else f"{outcome.memory_gib:.4g}GB",
        "" if outcome.seconds is None else seconds_text(outcome.seconds),
        "" if outcome.tflops is None else f"{outcome.tflops:g}",
        " ".join(note for note in notes if note),
    )


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.4f}"


def markdown(found: Results) -> str:
    """The notes' table, right-aligned as there, the best rows in bold."""
    rows = []
    for trial in found.trials:
        cells = notes_row(trial)
        rows.append([f"**{cell}**" if cell and trial.id in found.best else cell for cell in cells])
    widths = [max(len(cell) for cell in column) for column in zip(NOTES_HEADER, *rows, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    text = ""
    for line in (NOTES_HEADER, rule, *rows):
        padded = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        text += f"| {' | '.join(padded)} |\n"
    return text


def to_csv(found: Results) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "section", "date", *SETUP_COLUMNS, "env", *OUTCOME_COLUMNS, "notes"])
    for trial in found.trials:
        if trial.corrects is not None:
            continue  # computed again by the import
        env = [f"{name}={value}" for name, value in trial.setup.environment.items()]
        env += [f"freq={trial.setup.freq_ghz}GHz"] if trial.setup.freq_ghz else []
        writer.writerow(
            [
                trial.source.label or trial.id,
                trial.source.section,
                trial.source.date,
                *(_plain(getattr(trial.setup, name)) for name in SETUP_COLUMNS.values()),
                " ".join(env),
                *(_plain(getattr(trial.outcome, name)) for name in OUTCOME_COLUMNS.values()),
                trial.source.note,
            ]
        )
    return text.getvalue()


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
