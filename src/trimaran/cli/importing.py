"""trimaran import: measurements from files into the ledger."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimaran.ledger.reading import Reading

LedgerOption = Annotated[
    str,
    typer.Option("--ledger", help="The ledger file; else $TRIMARAN_LEDGER, else trimaran.sqlite here.", metavar="PATH"),
]


def import_(
    files: Annotated[list[Path] | None, typer.Argument(help="Logs, Markdown notes, CSV files, also gzipped.")] = None,
    published: Annotated[bool, typer.Option("--published", help="The published figures that ship along.")] = False,
    ledger: LedgerOption = "",
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Read measurements into the ledger: trainers' logs, notes with tables, CSV files. Recognised by content.

    What cannot be understood is listed with its line. Importing twice adds nothing.

    Example: `trimaran import run.log notes.md --ledger lab.sqlite`
    """
    from trimaran.ledger.published import published as shipped
    from trimaran.ledger.store import Ledger, ledger_path
    from trimaran.spec import Mistake

    if not files and not published:
        raise Mistake("Name at least one file to import, or --published for the figures that ship with Trimaran.")
    readings = read_all(files or [])
    if published:
        readings["published figures"] = shipped()
    unread = [line for reading in readings.values() for line in reading.unread]
    path = ledger_path(ledger)
    with Ledger.open(path) as store:
        added = store.add(trial for reading in readings.values() for trial in reading.trials)  # all files or none
        store.record_import(", ".join(readings), added, unread)
        total = store.count()
    if json:
        from dataclasses import asdict

        from trimaran.cli.show import print_json

        files_read = {name: len(reading.trials) for name, reading in readings.items()}
        lines = [asdict(line) for line in unread]
        print_json({"ledger": str(path), "count": total, "trials": files_read, **asdict(added), "unread": lines})
        return
    for name, reading in readings.items():
        print(f"{name}: {len(reading.trials)} trials")
        for line in reading.unread:
            print(f"  not understood, line {line.line}: {line.why}: {line.text.strip()[:100]!r}")
    print(f"{added.added} new, {added.updated} grown, {added.known} known already; {path} holds {total} trials.")


def read_all(files: list[Path]) -> "dict[str, Reading]":
    """Every file read before anything is written, with a progress bar on a terminal."""
    from functools import partial

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from trimaran.ledger.recognise import read_file

    readings = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for path in files:
            size = path.stat().st_size if path.is_file() else None
            task = progress.add_task(f"reading {path.name}", total=size)
            readings[str(path)] = read_file(path, partial(progress.advance, task))
            progress.remove_task(task)
    return readings
