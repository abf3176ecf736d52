"""trimaran results: the ledger's trials, ranked."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import MOST_ROWS, LedgerOption
from trimaran.cli.show import json_text, table_text
from trimaran.ledger.results import NOTES_HEADER, SHORT, Results, notes_row, parse_filter, ranking, seconds_text, to_csv
from trimaran.ledger.results import markdown as to_markdown
from trimaran.ledger.results import results as find
from trimaran.ledger.store import Filter, Ledger, ledger_path
from trimaran.spec import Mistake, Setup
from trimaran.spec.files import write_text


def results(
    where: Annotated[list[str] | None, typer.Argument(help="Conditions such as tp=4 'mbs>=2' size=181B.")] = None,
    sort: Annotated[str, typer.Option(help="A column; 'rank' is seconds, per sample where batches differ.")] = "rank",
    descending: Annotated[bool, typer.Option("--descending", help="Largest first.")] = False,
    by: Annotated[str, typer.Option(help="Group by columns: the best of each, such as --by tp,pp.")] = "",
    compare: Annotated[list[str] | None, typer.Option(help="Ids of trials to compare (repeat it).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Rows to show.")] = 40,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the tuning notes.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All, in the columns that `import` reads back.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Whole trials, for programs.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    ledger: LedgerOption = "",
) -> None:
    """Show what was measured: filter, sort, group, compare. Ranked by seconds per iteration, never by TFLOPs.

    Example: `trimaran results size=181B status=ok --markdown`
    """
    filters = [parse_filter(text) for text in where or []]
    with Ledger.read(ledger_path(ledger)) as store:
        if by:
            text = _groups(store, by, filters, json)
        elif compare:
            text = _comparison(store, compare, json)
        else:
            complete = csv or json or output is not None
            found = find(store, filters, sort, descending, None if complete else limit)
            if json:
                text = "[" + ",\n".join(trial.to_json() for trial in found.trials) + "]\n"
            else:
                text = to_csv(found) if csv else to_markdown(found) if markdown else _table(found)
    if output is not None:
        write_text(output, text)
        print(f"Written to {output}.")
    else:
        print(text, end="")


def _table(found: Results) -> str:
    rows = []
    for trial in found.trials:
        cells = list(notes_row(trial))
        per_sample = ""
        if trial.outcome.seconds and trial.setup.gbs:
            per_sample = f"{trial.outcome.seconds / trial.setup.gbs * 1000:.2f}"
        notes = cells.pop()
        mark = "★" if trial.id in found.best else ""
        if trial.id in found.replaced:
            notes = f"{notes} (as printed; corrected in another row)".strip()
        device = trial.setup.device or ""
        rows.append([mark, short(trial.id), device, *cells[:9], per_sample, cells[9], notes, trial.source.section])
    header = ["", "id", "device", *NOTES_HEADER[:9], "ms/sample", "TFLOPs", "Notes", "from"]
    ranked = {"seconds": "seconds per iteration", "seconds_per_sample": "seconds per sample, since batches differ"}
    title = f"{len(found.trials)} of {found.found} trials, by {ranked.get(found.ranked_by, found.ranked_by)}"
    return table_text(title, header, rows, left=(0, 1, 2, 14, 15)) + "★ fastest of its model among these\n"


def _groups(store: Ledger, by: str, where: list[Filter], json: bool) -> str:
    columns = [SHORT.get(name.strip(), name.strip()) for name in by.split(",")]
    measure = ranking(store, where)
    groups = sorted(store.groups(columns, where, measure), key=lambda g: (g.best is None, g.best or 0))
    if json:
        keys = [dict(zip(columns, g.key, strict=True)) for g in groups]
        best = [{"count": g.count, "seconds": g.seconds, measure: g.best, "id": g.id} for g in groups]
        return json_text([key | found for key, found in zip(keys, best, strict=True)])
    rows = [
        (
            *("?" if value is None else str(value) for value in g.key),
            str(g.count),
            "" if g.seconds is None else seconds_text(g.seconds),
            "" if g.best is None or measure == "seconds" else f"{g.best * 1000:.2f}",
            short(g.id or ""),
        )
        for g in groups
    ]
    return table_text(f"{len(groups)} groups", [*columns, "trials", "best sec/it", "ms/sample", "id"], rows, left=())


def _comparison(store: Ledger, ids: list[str], json: bool) -> str:
    trials = []
    for given in ids:
        whole = store.get(given)
        prefix = [Filter("id", ">=", given), Filter("id", "<", given + "\U0010ffff")]
        found = [whole] if whole else store.trials(prefix)
        if len(found) != 1:
            what = "no trial" if not found else f"{len(found)} trials"
            raise Mistake(f"There is {what} whose id starts with {given!r}; `trimaran results` shows the ids.")
        trials += found
    if len(trials) < 2:
        raise Mistake("Comparing needs two trials: give --compare twice.")
    if json:
        return json_text([trial.to_dict() for trial in trials])
    fields = [name for name in Setup.model_fields if len({str(getattr(t.setup, name)) for t in trials}) > 1]
    rows = [[name, *(_known(getattr(t.setup, name)) for t in trials)] for name in fields]
    results = ("status", "seconds", "memory_gib", "tflops")
    rows += [[name, *(str(getattr(t.outcome, name) or "") for t in trials)] for name in results]
    times = [t.outcome.seconds / t.setup.gbs if t.outcome.seconds and t.setup.gbs else None for t in trials]
    first = times[0]
    rows.append(["time per sample", *(f"{time / first:.3f} x" if time and first else "?" for time in times)])
    return table_text("What differs", ["", *(short(t.id) for t in trials)], rows)


def _known(value: object) -> str:
    return "?" if value in (None, {}) else str(value)


def short(trial_id: str) -> str:
    """A prefix that identifies a trial; ids of a sweep differ only at their end."""
    return trial_id if "/" in trial_id else trial_id[:8]
