"""trimaran audit: what is wrong in measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimaran.ledger.audit import Finding
    from trimaran.spec import Trial


def audit(
    files: Annotated[list[Path] | None, typer.Argument(help="Logs, notes, CSV; without any, the ledger.")] = None,
    published: Annotated[bool, typer.Option("--published", help="The published figures that ship along.")] = False,
    ledger: Annotated[
        str | None, typer.Option("--ledger", metavar="[PATH]", help="The ledger to audit, or to --fix into.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Import the corrected values into the ledger, beside the printed ones.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Find what is wrong in measurements, why, and what the value must have been.

    *impossible*: cannot be as printed, and the evidence forces one correction. *contradictory*: cannot all be true, but
    nothing says which part is wrong. *suspicious*: possible, and worth a look.

    Example: `trimaran audit notes.md --fix`
    """
    from rich.console import Console

    from trimaran.cli.importing import read_all
    from trimaran.ledger.audit import audit as find
    from trimaran.ledger.audit import corrected
    from trimaran.ledger.published import published as shipped
    from trimaran.ledger.store import Ledger, ledger_path

    path = ledger_path(ledger)
    if files or published:
        readings = list(read_all(files or []).values()) + ([shipped()] if published else [])
        trials = [trial for reading in readings for trial in reading.trials]
        remarks = [remark for reading in readings for remark in reading.remarks]
    else:
        with Ledger.read(path) as store:
            trials, remarks = store.trials(order="source_line"), []
    with Console(stderr=True).status(f"auditing {len(trials)} trials"):
        findings = find(trials, remarks)
    fixed = corrected(trials, findings) if fix else []
    added = 0
    if fix:
        with Ledger.open(path) as store:
            added = store.add([*trials, *fixed]).added
    if json:
        _print_json(trials, findings)
    else:
        _print(trials, findings)
        if fix:
            print(f"{len(fixed)} corrected trials stand beside the printed ones in {path} ({added} rows were new).")


def _print(trials: "list[Trial]", findings: "list[Finding]") -> None:
    from rich.markup import escape
    from rich.padding import Padding

    from trimaran.cli.show import console
    from trimaran.ledger.audit.finding import LEVELS, MEANING

    out = console()
    colours = {"impossible": "red", "contradictory": "yellow", "suspicious": "cyan"}
    for level in LEVELS:
        chosen = [finding for finding in findings if finding.level == level]
        if not chosen:
            continue
        out.print(f"[bold {colours[level]}]{level}[/] ({len(chosen)}): {MEANING[level]}")
        for finding in chosen:
            said = f"[bold]{escape(finding.where)}[/] {finding.check}: {escape(finding.message)}"
            out.print(Padding(said, (0, 0, 0, 2)))
            if finding.corrections:
                fixes = ", ".join(f"{name} = {value}" for name, value in finding.corrections.items())
                out.print(Padding(f"[green]→ {escape(fixes)}[/]", (0, 0, 0, 4)))
        out.print()
    wrong = {finding.trial for finding in findings if finding.level == "impossible"}
    out.print(f"{len(trials)} trials audited: {len(findings)} findings, {len(wrong)} trials with a forced correction.")


def _print_json(trials: "list[Trial]", findings: "list[Finding]") -> None:
    from dataclasses import asdict

    from trimaran.cli.show import print_json

    sources = {trial.id: trial.source for trial in trials}
    print_json(
        {
            "trials": len(trials),
            "findings": [
                {
                    **asdict(finding),
                    "label": sources[finding.trial].label,
                    "file": sources[finding.trial].file,
                    "line": sources[finding.trial].line,
                }
                for finding in findings
            ],
        }
    )
