"""trimaran import: measurements from files into the ledger; a launch file as a Job."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trimaran.cli.options import LedgerOption, PublishedOption
from trimaran.cli.show import JsonOption, print_json
from trimaran.export.formats import read_launch_file
from trimaran.export.partial_job import PartialJob, complete_job
from trimaran.ledger.published import published as read_published
from trimaran.ledger.reading import Reading, joined
from trimaran.ledger.recognise import read_file
from trimaran.ledger.store import Ledger, ledger_path
from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_cluster, load_model, save


def import_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Logs, Markdown notes, CSV files, also gzipped; or one launch file of a trainer."),
    ] = None,
    published: PublishedOption = False,
    ledger: LedgerOption = "",
    on: Annotated[str, typer.Option("--on", help="For a launch file: the cluster it is for.")] = "",
    model: Annotated[
        str, typer.Option("--model", help="For a launch file that states no model, or not all of it.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="For a launch file: change a field of the job, as in cluster.nodes=48."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="For a launch file: write the job here instead of printing it."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Read measurements into the ledger: trainers' logs, notes with tables, CSV files. Recognised by content.

    What cannot be understood is listed with its line. Importing twice adds nothing.

    A launch file (a script of Megatron-DeepSpeed or Megatron-LM, its argument dump, a torchtitan TOML, a DeepSpeed
    JSON) becomes a job instead, on the cluster that --on names: to be planned, explained or compared.

    Example: `trimaran import run.log notes.md --ledger lab.sqlite`, `trimaran import train.sh --on selene -o mine.yaml`
    """
    if not files and not published:
        raise Mistake("Name at least one file to import, or --published for the figures that ship with Trimaran.")
    launch = launch_file(files or [], alone=not published)
    if launch is not None:
        _job(*launch, on, model, settings or [], output, json)
        return
    for option, value in (("--on", on), ("--model", model), ("--set", settings), ("--output", output)):
        if value:
            raise Mistake(f"{option} is for a launch file, but {files[0] if files else '--published'} is none.")
    readings = read_all(files or [], published)
    everything = joined(readings.values())
    path = ledger_path(ledger)
    with Ledger.open_checked(path) as store:
        added = store.add_reading(", ".join(readings), everything)  # all files or none
        view = store.correct()
    total, corrected = len(view.trials), len(view.corrections)
    if json:
        files_read = {name: len(reading.trials) for name, reading in readings.items()}
        lines = [asdict(line) for line in everything.unread]
        answer = {"ledger": str(path), "count": total, "trials": files_read, **asdict(added), "corrected": corrected}
        print_json({**answer, "unread": lines})
        return
    for name, reading in readings.items():
        print(f"{name}: {len(reading.trials)} trials")
        for line in reading.unread:
            print(f"  not understood, line {line.line}: {line.why}: {line.text.strip()[:100]!r}")
    print(f"{added.added} new, {added.updated} grown, {added.known} known already; {path} holds {total} trials.")
    if corrected:
        print(
            f"{corrected} of them cannot be as printed and have a corrected row beside them; `trimaran audit` says why."
        )


def launch_file(files: list[Path], alone: bool = True) -> tuple[Path, PartialJob] | None:
    """The launch file among these, which must then be the only one; None where all are measurements."""
    for path in files:
        found = read_launch_file(_text_of(path), path.name)
        if found is not None and (len(files) > 1 or not alone):
            raise Mistake(
                f"{path} is a launch file and becomes a job, while measurements go into the ledger;"
                " import it by itself."
            )
        if found is not None:
            return path, found
    return None


LARGEST_LAUNCH_FILE = 2_000_000  # bytes; what is larger is a log


def _text_of(path: Path) -> str:
    """The text, or "" where it cannot be a launch file; the readers of measurements report files they cannot open."""
    try:
        return path.read_text("utf-8-sig") if path.stat().st_size < LARGEST_LAUNCH_FILE else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _job(
    path: Path, found: PartialJob, on: str, model: str, settings: list[str], output: Path | None, json: bool
) -> None:
    job = job_of_launch_file(path, found, on, model, settings)
    for flag in found.unread:
        print(f"not understood: {flag}", file=sys.stderr)
    if output is not None:
        save(job, output)
    if json:
        print_json({"job": job.to_dict(), "unread": list(found.unread)})
    elif output is None:
        print(job.to_yaml(), end="")
    else:
        layout = job.layout
        print(
            f"{output}: {job.name}, dp {layout.dp} x tp {layout.tp} x pp {layout.pp}, micro batch {layout.micro_batch},"
            f" on {job.cluster.devices} devices of {job.cluster.name}, {job.trainer.name}"
        )


def job_of_launch_file(path: Path, found: PartialJob, on: str, model: str, settings: list[str]) -> Job:
    if not on:
        raise Mistake(
            f"{path} is a launch file for {found.trainer}, but does not say for which machines; name the cluster with"
            " --on, a preset's name or a file."
        )
    return complete_job(found, load_cluster(on), load_model(model) if model else None, path.name, settings)


def read_all(files: list[Path], published: bool) -> dict[str, Reading]:
    """Every file is read before anything is written, with a progress bar on a terminal."""
    readings = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for path in files:
            size = path.stat().st_size if path.is_file() else None
            task = progress.add_task(f"reading {path.name}", total=size)
            readings[str(path)] = read_file(path, partial(progress.advance, task))
            progress.remove_task(task)
    return readings | {"published figures": read_published()} if published else readings
