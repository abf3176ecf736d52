"""trimaran plan: every layout, ranked, with the reasons."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from trimaran.cli.options import MOST_ROWS, FixOption, NodesOption, OnOption, PrecisionOption
from trimaran.cli.show import JsonOption, console, print_json, table
from trimaran.planner.compare import Comparison
from trimaran.planner.plan import HEADER, LEFT, MORE, TIE, Plan, make_plan
from trimaran.planner.question import Question
from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job, write_files

OWN = "◀ yours"
WIDE = 168  # columns of a terminal that hold the whole table


def plan(
    model: Annotated[str, typer.Argument(help="A preset's name or a file; with --compare the job has it.")] = "",
    on: OnOption = "",
    gbs: Annotated[int | None, typer.Option("--gbs", help="Global batch, in samples.")] = None,
    nodes: NodesOption = None,
    ramp: Annotated[str, typer.Option(help="Batch ramp-up: START,INCREMENT,SAMPLES.")] = "",
    fix: FixOption = None,
    trainer: Annotated[str, typer.Option("--trainer", help="The software that runs it; else our own.")] = "",
    precision: PrecisionOption = "",
    optimizer: Annotated[str, typer.Option("--optimizer", help="adam (the default), fused-adam or adam-8bit.")] = "",
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Your own job, or a launch file with --on: planned anew, its layout marked."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Rows to show.")] = 10,
    objective: Annotated[
        Literal["time", "tokens-per-device-hour", "memory"], typer.Option(help="What to be best in.")
    ] = "time",
    variants: Annotated[
        bool,
        typer.Option("--variants", help="Also the slower ZeRO, recompute and schedule of the same dp, tp, pp, mbs."),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the tuning notes.")] = False,
    json: JsonOption = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write Jobs: the best into a .yaml or .json file, or all into a folder."),
    ] = None,
) -> None:
    """Find the fastest layout: every one that fits, predicted and ranked by seconds per iteration.

    ≈ marks ties: layouts that the cost model cannot tell from the best with what is known of this cluster.
    With --compare the question is that job's, and the table says where its own layout stands.

    Example: `trimaran plan bloom-176b --on jean-zay-a100-80gb --nodes 48 --gbs 2048 --fix recompute=full`
    """
    given = {"MODEL": model, "--gbs": gbs, "--ramp": ramp, "--trainer": trainer, "--precision": precision}
    given["--optimizer"] = optimizer
    own = None
    if compare is not None:
        own = _own_job(compare, on, given)
        question = Question.of_job(own, nodes, fix or ())
    else:
        for value, name, what in (
            (model, "MODEL", "the model"),
            (on, "--on", "the cluster"),
            (gbs, "--gbs", "the batch"),
        ):
            if not value and value != 0:
                raise Mistake(f"{name} is missing: {what} to plan for. Or name a job of yours with --compare.")
        options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
        question = Question.of(model, on, gbs or 0, nodes, ramp=ramp, fix=fix or (), **options)
    made = make_plan(question, top, objective, variants)
    if not made:
        raise Mistake(made.impossible)
    if save is not None:
        _save(made, save)
    comparison = None if own is None else made.compare(own)
    if json:
        print_json(made.to_dict() | ({} if comparison is None else {"yours": comparison.row()}))
    elif markdown:
        print(_markdown(_rows(made, comparison)), end="")
    else:
        _print(made, comparison)


def _own_job(file: Path, on: str, given: dict[str, Any]) -> Job:
    """The job to compare: a job file, or a launch file on the cluster that --on names."""
    from trimaran.cli.importing import job_of_launch_file, launch_file  # with the ledger, which no other plan needs

    for option, value in given.items():
        if value:
            raise Mistake(f"{option} is {value!r}, but {file} says that already; leave it out, or change the file.")
    launch = launch_file([file])
    if launch is not None:
        for flag in launch[1].unread:
            print(f"not understood: {flag}", file=sys.stderr)
        return job_of_launch_file(*launch, on, "", [])
    if on:
        raise Mistake(f"--on is {on!r}, but {file} is a job and names its cluster; --nodes may give it more nodes.")
    return load_job(file)


def _rows(made: Plan, comparison: Comparison | None) -> list[list[str]]:
    """The table's rows, the job's own layout marked in its place or added there."""
    rows = [each.cells() for each in made]
    if comparison is None:
        return rows
    layouts, own = [each.layout for each in made], comparison.own
    if own.layout in layouts:
        place = layouts.index(own.layout)
        rows[place][-1] = f"{rows[place][-1]} {OWN}".strip()
        return rows
    mark = f"{TIE} {OWN}" if own.tie else OWN
    place = sum(each.score < own.score for each in made)
    rows.insert(place, [*own.cells()[:-1], mark + ("" if comparison.fits else ", does not fit")])
    return rows


def _print(made: Plan, comparison: Comparison | None) -> None:
    print_layouts(made.title, _rows(made, comparison))
    out = console()
    for note in made.notes:
        out.print(note)
    out.print(Text.assemble(("Why this one.", "bold"), " ", " ".join(made.why)))
    out.print(made.left_out, style="dim", highlight=False)
    if comparison is not None:
        out.print(Text.assemble(("Yours.", "bold"), f" {comparison}"))
        for warning in comparison.job.warnings():
            out.print(f"Warning: {warning}", highlight=False)


def print_layouts(title: str, rows: list[list[str]]) -> None:
    """One table, or two with numbered rows where the terminal is too narrow for all columns."""
    out, cut = console(), len(HEADER)
    if out.width >= WIDE:
        out.print(table(title, [*HEADER, *MORE], rows, left=LEFT))
        return
    marked = [[str(i), *row[:cut], row[-1]] for i, row in enumerate(rows, 1)]
    out.print(table(title, ["", *HEADER, ""], marked, left=(11,)))
    out.print(table("", ["", *MORE[:-1]], [[str(i), *row[cut:-1]] for i, row in enumerate(rows, 1)], left=(3, 5, 7)))


def _markdown(rows: list[list[str]]) -> str:
    """The notes' table; what it has no column for goes into its Notes."""
    lines = ["| " + " | ".join((*HEADER, "Notes")) + " |", "|" + " --: |" * (len(HEADER) + 1)]
    for row in rows:
        values = dict(zip(MORE, row[len(HEADER) :], strict=True))
        notes = f"predicted {values['80 % interval']} s, ZeRO {values['ZeRO']}, recompute {values['recompute']}"
        notes += f", {values['schedule']}" + (", sequence parallel" if values["SP"] == "yes" else "")
        notes += ", yours" if OWN in values[""] else ""
        lines.append("| " + " | ".join((*row[: len(HEADER)], notes)) + " |")
    return "\n".join(lines) + "\n"


def _save(made: Plan, path: Path) -> None:
    if path.suffix in (".yaml", ".yml", ".json"):
        made.best.job.save(path)
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{path} cannot be written: {error.strerror}.") from None
    digits = len(str(len(made)))
    write_files({path / f"{each.rank:0{digits}d}-{each.job.name}.yaml": each.job.to_yaml().encode() for each in made})
