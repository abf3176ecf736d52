"""trimaran sweep: run many trials and record how each ended."""

import json as to_json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trimaran.cli.options import MOST_ROWS
from trimaran.cli.show import print_table
from trimaran.lab.choose import Candidate, Refused, candidates, sweep_of_plan
from trimaran.lab.harness import STOPPED, Budget, Harness
from trimaran.lab.sweep_folder import attempts_of, exclusive, load_sweep_folder, start_sweep
from trimaran.lab.view import SweepConsole, SweepView
from trimaran.ledger.store import Ledger, ledger_path
from trimaran.planner.plan import make_plan
from trimaran.planner.question import Question
from trimaran.processes.command import finite
from trimaran.processes.exit_codes import INTERRUPTED
from trimaran.spec import Mistake, Sweep
from trimaran.spec.files import load_sweep
from trimaran.spec.settings import apply_settings


def sweep(
    what: Annotated[
        str | None, typer.Argument(help="A sweep file or preset (see `trimaran presets`); with --plan, a model.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Try the planner's best layouts of the model.")] = False,
    on: Annotated[str, typer.Option("--on", help="--plan: the cluster.")] = "here",
    gbs: Annotated[int | None, typer.Option("--gbs", help="--plan: the global batch, in samples.")] = None,
    top: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="--plan: how many of the best.")] = 8,
    nodes: Annotated[int | None, typer.Option(help="--plan: the most nodes to use.")] = None,
    fix: Annotated[list[str] | None, typer.Option("--fix", help="--plan: only such layouts, as in tp=4.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field of the base job, as in steps=5; may be repeated.")
    ] = None,
    place: Annotated[str | None, typer.Option(help="local, slurm or allocation, instead of the sweep's.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where its trials go; else sweeps/NAME.")] = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger; else $TRIMARAN_LEDGER or trimaran.sqlite.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Start no more trials than this.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Start no trial after so many minutes.")
    ] = None,
    stop_when_sure: Annotated[
        bool, typer.Option("--stop-when-sure", help="End when no untried layout can beat the best.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a sweep that was started before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which trials it would run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs: one object at the end.")] = False,
) -> None:
    """Run every layout of a sweep as its own trial, the fastest predicted first; all of them go into the ledger.

    Ctrl-C once: stop after the running trials. Twice: stop now. --resume continues after any end, also kill -9.

    Example: `trimaran sweep layouts --budget 12`, or `trimaran sweep gpt-1b3 --plan --on here --gbs 16 --top 8`
    """
    if what is None and not (resume and folder):
        raise Mistake("Which sweep? Name a file or a preset such as layouts; or --resume with --folder.")
    if resume:
        where = folder or (Path(what) if what and Path(what).is_dir() else Path("sweeps") / Path(what or "").stem)
        refused: list[Refused] = []
        started = load_sweep_folder(where)
    else:
        if plan:
            if gbs is None:
                raise Mistake("--plan needs the global batch: add --gbs, such as --gbs 16.")
            requested = sweep_of_plan(make_plan(Question.of(what or "", on, gbs, nodes, fix=fix or ()), top))
        else:
            requested = load_sweep(what or "")
        requested = _with_options(requested, settings, place)
        found, refused = candidates(requested)
        where = folder or Path("sweeps") / requested.name
        if dry_run:
            _show(requested, found, refused, json)
            return
        if not found:
            raise Mistake(f"No layout of the sweep {requested.name} is possible: {refused[0].why}")
        started = start_sweep(where, requested, found)
    with exclusive(where), Ledger.open(ledger_path(ledger)) as store:
        attempts = attempts_of(started.name, where.resolve(), started.candidates, store)
        harness = Harness(started.sweep, where.resolve(), attempts, store, Budget(budget, minutes, stop_when_sure))
        console = SweepConsole(stderr=json, soft_wrap=True, markup=False, emoji=False, highlight=False)
        impossible = f"; {len(refused)} combinations are impossible, such as {refused[0].label}" if refused else ""
        counts = f"{len(started.candidates)} trials in {where}, {len(harness.done)} done"
        console.print(f"{started.name}: {counts}{impossible}")
        with SweepView(len(started.candidates), console) as view:
            harness.run(view)
    _conclude(harness, console, json)


def _with_options(sweep: Sweep, settings: list[str] | None, place: str | None) -> Sweep:
    values = sweep.model_dump()
    if settings:
        values["base"] = apply_settings(sweep.base, settings).model_dump()
    if place:
        values["place"]["kind"] = place
    return Sweep.of(values, f"The sweep {sweep.name}")


def _show(requested: Sweep, found: list[Candidate], refused: list[Refused], json: bool) -> None:
    if json:
        trials = [{**vars(candidate), "job": candidate.job.to_dict()} for candidate in found]
        print(to_json.dumps({"name": requested.name, "trials": trials, "refused": [vars(each) for each in refused]}))
        return
    rows = [
        (c.label, f"{c.seconds:.3g}", f"{c.low:.3g}–{c.high:.3g}", f"{c.memory_gib:.2f}", "" if c.fits else "too large")
        for c in found
    ]
    print_table(f"The sweep {requested.name}", ("what", "predicted s", "80 % interval", "GiB", ""), rows)
    for each in refused:
        print(f"impossible: {each.label}: {each.why}")


def _conclude(harness: Harness, console: Console, json: bool) -> None:
    """The best trial, and why the sweep ended; exit code 5 where it was stopped."""
    best = harness.best
    counts = Counter(attempt.outcome.status for attempt in harness.done if attempt.outcome)
    if json:
        summary = {
            "sweep": harness.folder.name,
            "folder": str(harness.folder),
            "ended": harness.why_ended,
            "left": len(harness.waiting),
            "counts": counts,
            "best": best.id if best else None,
            "trials": [
                {"id": a.id, "label": a.candidate.label, "predicted": a.candidate.seconds, **a.outcome.to_dict()}
                for a in harness.done
                if a.outcome
            ],
        }
        print(to_json.dumps(summary))
    else:
        statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        console.print(f"{harness.why_ended} {statuses}; {len(harness.waiting)} not tried.")
        if best is not None and best.outcome is not None and best.outcome.seconds is not None:
            console.print(
                f"Best: {best.candidate.label}: {best.outcome.seconds:.4g} s per iteration, predicted"
                f" {best.candidate.seconds:.3g}; its job is {best.folder / 'job.yaml'}"
            )
    if harness.why_ended == STOPPED:
        raise typer.Exit(INTERRUPTED)
