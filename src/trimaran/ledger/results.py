"""Results: a question to the ledger, answered as rows; ranked by time, because that is what a run costs."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.ledger.query import Condition
from trimaran.ledger.schema import COLUMNS, TEXT_COLUMNS
from trimaran.ledger.store import Ledger
from trimaran.ledger.tables.csv import OUTCOME_COLUMNS, SETUP_COLUMNS
from trimaran.spec import Mistake, Trial

CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
SHORT = {"size": "size_label", "sec": "seconds", "mem": "memory_gib", "section": "source_section"}
RANK = "rank"  # seconds per iteration, or per sample where batches differ
MODEL = ("device", "layers", "hidden", "size_label", "seq_len")  # what must agree for times to be comparable


@dataclass(frozen=True)
class Results:
    """Trials in order, which are the best of their model, and which are printed values that a correction replaces."""

    trials: list[Trial]
    found: int
    ranked_by: str
    best: frozenset[str]
    replaced: frozenset[str]


def condition(text: str) -> Condition:
    """'tp=4', 'mbs>=2', 'status!=ok', 'memory_gib=unknown' as a Condition."""
    match = CONDITION.fullmatch(text)
    if match is None:
        raise Mistake(f"{text!r} is no condition; write a column, = != < <= > or >=, and a value, such as tp=4.")
    name = SHORT.get(match[1], match[1])
    value: str | float | None = match[3]
    if match[3] in ("unknown", "none", ""):
        value = None if name != "recompute" or match[3] != "none" else "none"
    elif name in COLUMNS and name not in TEXT_COLUMNS:
        try:
            value = float(match[3])
        except ValueError:
            raise Mistake(f"{name} is a number, which {match[3]!r} is not.") from None
    return Condition(name, match[2], value)


def results(
    ledger: Ledger, where: Sequence[Condition], order: str = RANK, descending: bool = False, limit: int | None = None
) -> Results:
    column = ranking(ledger, where) if order == RANK else SHORT.get(order, order)
    trials = ledger.trials(where, column, descending, limit)
    replaced = frozenset(row[0] for row in ledger.rows(("corrects",), (Condition("corrects", "!=", None),)))
    measure = column if column in ("seconds", "seconds_per_sample") else "seconds_per_sample"
    return Results(trials, ledger.count(where), column, _best(trials, replaced, measure), replaced)


def ranking(ledger: Ledger, where: Sequence[Condition]) -> str:
    """The column that makes these trials comparable: an iteration's time, or a sample's where batches differ."""
    batches = ledger.groups(("gbs",), [*where, Condition("seconds", "!=", None)])
    return "seconds" if len(batches) <= 1 else "seconds_per_sample"


def _best(trials: Sequence[Trial], replaced: frozenset[str], measure: str) -> frozenset[str]:
    """The fastest successful trial of each model among those shown."""
    fastest: dict[Any, tuple[float, str]] = {}
    for trial in trials:
        seconds, gbs = trial.outcome.seconds, trial.setup.gbs
        if trial.outcome.status != "ok" or seconds is None or trial.id in replaced:
            continue
        if measure == "seconds_per_sample" and gbs is None:
            continue
        time = seconds / (gbs or 1) if measure == "seconds_per_sample" else seconds
        model = tuple(getattr(trial.setup, name) for name in MODEL)
        if model not in fastest or time < fastest[model][0]:
            fastest[model] = time, trial.id
    return frozenset(id_ for _, id_ in fastest.values())


NOTES_HEADER = ("Nodes", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs", "Notes")


def notes_row(trial: Trial) -> tuple[str, ...]:
    """A trial in the form of the tuning notes' tables."""
    setup, outcome = trial.setup, trial.outcome
    said = [trial.source.date, outcome.status if outcome.status != "ok" else outcome.reason]
    if trial.corrections:
        said.append("corrected: " + ", ".join(f"{name}={value}" for name, value in trial.corrections.items()))
    numbers = (setup.dp, setup.tp, setup.pp, setup.mbs, setup.gbs)
    return (
        _cell(setup.nodes),
        setup.size_label or "",
        *(_cell(number) for number in numbers),
        "" if outcome.memory_gib is None else f"{outcome.memory_gib:.4g}GB",
        "" if outcome.seconds is None else seconds_text(outcome.seconds),
        "" if outcome.tflops is None else f"{outcome.tflops:g}",
        " ".join(word for word in said if word),
    )


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.4f}"


def markdown(found: Results) -> str:
    """The notes' table, right-aligned as there, the best rows in bold."""
    rows = []
    for trial in found.trials:
        cells = notes_row(trial)
        rows.append([f"**{cell}**" if cell and trial.id in found.best else cell for cell in cells])
    widths = [max(len(row[i]) for row in (NOTES_HEADER, *rows)) for i in range(len(NOTES_HEADER))]
    lines = [_line([name.rjust(width) for name, width in zip(NOTES_HEADER, widths, strict=True)])]
    lines.append(_line(["-" * (width - 1) + ":" for width in widths]))
    lines += [_line([cell.rjust(width) for cell, width in zip(row, widths, strict=True)]) for row in rows]
    return "\n".join(lines) + "\n"


def to_csv(found: Results) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "section", "date", *SETUP_COLUMNS, "env", *OUTCOME_COLUMNS, "notes"])
    for trial in found.trials:
        if trial.corrects is not None:
            continue  # whoever imports the file computes the corrections again
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


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
