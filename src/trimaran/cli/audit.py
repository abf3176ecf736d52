"""trimaran audit: what is wrong in measurements."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trimaran.cli.importing import read_all
from trimaran.cli.options import PublishedOption
from trimaran.cli.show import JsonOption, console, print_json
from trimaran.ledger.audit import Corrected, corrected
from trimaran.ledger.audit.finding import LEVELS
from trimaran.ledger.reading import joined
from trimaran.ledger.store import Ledger, ledger_path


def audit(
    files: Annotated[list[Path] | None, typer.Argument(help="Logs, notes, CSV; without any, the ledger.")] = None,
    published: PublishedOption = False,
    ledger: Annotated[
        str | None, typer.Option("--ledger", metavar="[PATH]", help="The ledger to audit, or to --fix into.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Import into the ledger, corrected values beside the printed ones.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Find what is wrong in measurements, why, and what the value must have been.

    *impossible*: cannot be as printed, and the evidence forces one correction. *contradictory*: cannot all be true, but
    nothing says which part is wrong. *suspicious*: possible, and worth a look.

    Example: `trimaran audit notes.md --fix`
    """
    path = ledger_path(ledger)
    named = read_all(files or [], published)
    if named:
        reading = joined(named.values())
    else:
        with Ledger.read(path) as store:
            reading = store.reading()
    with Console(stderr=True).status(f"auditing {len(reading.trials)} trials"):
        view = corrected(reading)
        if fix:
            with Ledger.open_checked(path) as store:
                if named:
                    store.add_reading(", ".join(named), reading)
                stored = {trial.corrects for trial in store.correct().corrections}
    if json:
        sources = {trial.corrects or trial.id: trial.source for trial in view.trials}
        findings = []
        for finding in view.findings:
            source = sources[finding.trial]
            findings.append({**asdict(finding), "label": source.label, "file": source.file, "line": source.line})
        print_json({"trials": len(view.trials), "findings": findings})
        return
    _print(view)
    if fix:
        fixed = stored & {trial.id for trial in reading.trials}
        print(f"{len(fixed)} corrected trials stand beside the printed ones in {path}.")


def _print(view: Corrected) -> None:
    out = console()
    colors = {"impossible": "red", "contradictory": "yellow", "suspicious": "cyan"}
    for level, meaning in LEVELS.items():
        chosen = [finding for finding in view.findings if finding.level == level]
        if not chosen:
            continue
        out.print(Text.assemble((level, f"bold {colors[level]}"), f" ({len(chosen)}): {meaning}"))
        for finding in chosen:
            text = Text.assemble((finding.where, "bold"), f" {finding.check}: {finding.message}")
            out.print(Padding(text, (0, 0, 0, 2)))
            if finding.corrections:
                fixes = ", ".join(f"{name} = {value}" for name, value in finding.corrections.items())
                out.print(Padding(Text(f"→ {fixes}", "green"), (0, 0, 0, 4)))
        out.print()
    forced = f"{len(view.corrections)} trials with a forced correction"
    out.print(f"{len(view.trials)} trials audited: {len(view.findings)} findings, {forced}.")
