"""trimaran plan: every layout, ranked, with the reasons."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from trimaran.planner.compare import Compared
    from trimaran.planner.question import Question
    from trimaran.planner.ranking import Choices

OnOption = Annotated[str, typer.Option("--on", help="The cluster: a preset's name, a file, or 'here'.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", help="The most nodes to use; else all of the cluster.")]
TrainerOption = Annotated[str, typer.Option("--trainer", help="The software that runs it.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="Else bf16, or what the device has.")]
OptimizerOption = Annotated[str, typer.Option("--optimizer", help="adam, fused-adam or adam-8bit.")]
FixOption = Annotated[
    list[str] | None,
    typer.Option("--fix", help="Only such layouts: tp=4, mbs=2,4, recompute=full, nodes=48 (repeat it)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]

HEADER = ("Nodes", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs")
MORE = ("80 % interval", "ZeRO", "recompute", "SP", "schedule", "bubble", "limited by", "")
BEST, TIE, YOURS = "★", "≈", "◀ yours"
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
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 10,
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
    from trimaran.cli.comparing import asked_by, asked_for, tell, with_yours
    from trimaran.planner.compare import compared
    from trimaran.planner.ranking import choices, distinct, search
    from trimaran.planner.relax import impossible
    from trimaran.planner.why import why

    given = {"MODEL": model, "--gbs": gbs, "--ramp": ramp, "--trainer": trainer, "--precision": precision}
    given["--optimizer"] = optimizer
    if compare is not None:
        own = asked_for(compare, on, given)
        asked = asked_by(own, nodes, fix)
    else:
        own, asked = None, question(model, on, nodes, gbs, trainer, precision, optimizer, fix, ramp)
    found = search(asked, objective, keep=max(top, 256))
    if not len(found):
        raise impossible(asked)
    different = distinct(found)
    chosen = choices(asked, found if variants else different, top, objective)
    reasons = why(asked, different, objective)
    if save is not None:
        _save(asked, chosen, save)
    rows = [cells(asked, chosen, i) for i in range(len(chosen.found))]
    yours = None if own is None else compared(asked, found, own, objective)
    if yours is not None:
        rows = with_yours(asked, chosen, rows, yours)
    if json:
        _print_json(asked, chosen, found.counts, reasons, objective, yours)
    elif markdown:
        print(_markdown(rows), end="")
    else:
        _print(asked, chosen, rows, found.counts, reasons, objective)
        if yours is not None:
            tell(yours)


def question(
    model: str,
    on: str,
    nodes: int | None,
    gbs: int | None,
    trainer: str = "",
    precision: str = "",
    optimizer: str = "",
    fix: list[str] | None = None,
    ramp: str = "",
) -> "Question":
    """The options of a command as a Question; every wrong one is a sentence."""
    from typing import cast, get_args

    from trimaran.planner.question import Question, batch_of, fixed_of, usual_precision, with_nodes
    from trimaran.spec import Mistake, presets
    from trimaran.spec.cluster import Precision
    from trimaran.spec.files import load_cluster, load_model
    from trimaran.spec.trainer import Optimizer

    for value, name, what in ((model, "MODEL", "the model"), (on, "--on", "the cluster"), (gbs, "--gbs", "the batch")):
        if not value and value != 0:
            raise Mistake(f"{name} is missing: {what} to plan for. Or name a job of yours with --compare.")
    optimizer = optimizer or "adam"
    for given, name, known in ((precision or "bf16", "--precision", Precision), (optimizer, "--optimizer", Optimizer)):
        if given not in get_args(known):
            raise Mistake(f"{name} is {given!r}, but it is one of {', '.join(get_args(known))}.")
    cluster = with_nodes(load_cluster(on), nodes)
    return Question(
        model=load_model(model),
        cluster=cluster,
        trainer=presets.trainer(trainer or "trimaran"),
        batch=batch_of(gbs or 0, ramp),
        precision=cast(Precision, precision) if precision else usual_precision(cluster),
        optimizer=cast(Optimizer, optimizer),
        fixed=fixed_of(fix or []),
    )


def record(asked: "Question", chosen: "Choices", i: int) -> dict[str, Any]:
    """One layout, complete: its fields as a Layout has them, and what it is predicted to cost."""
    from trimaran.cost.flops import FORMULAS, Step, tflops_per_device

    found, layout = chosen.found, chosen.found.layout(i)
    seconds = float(found.seconds[i])
    step = Step(asked.model, asked.batch.size, layout.tp, layout.recompute)
    tokens_per_second = step.tokens / seconds
    return {
        "rank": i + 1,
        "nodes": layout.devices // asked.cluster.devices_per_node,
        "devices": layout.devices,
        **layout.to_dict(),
        "gbs": asked.batch.size,
        "micro_batches": asked.batch.size // (layout.dp * layout.micro_batch),
        "seconds": seconds,
        "seconds_low": float(chosen.interval.low[i]),
        "seconds_high": float(chosen.interval.high[i]),
        "uncertain_most_about": chosen.interval.dominant[i],
        "memory_gib": float(found.memory_gib[i]),
        "tflops": float(tflops_per_device(FORMULAS[asked.trainer.prints](step), seconds, layout.devices)),
        "tflops_formula": asked.trainer.prints,
        "tokens_per_second": tokens_per_second,
        "tokens_per_device_hour": tokens_per_second * 3600 / layout.devices,
        "bubble": float(chosen.parts.predicted.time.bubble[i]),
        "shares": {name: float(share[i]) for name, share in chosen.parts.shares().items()},
        "limited_by": chosen.parts.limiting(i),
        "tie": bool(chosen.ties[i]),
    }


def cells(asked: "Question", chosen: "Choices", i: int) -> list[str]:
    return as_row(asked, record(asked, chosen, i), best=i == 0)


def as_row(asked: "Question", row: dict[str, Any], best: bool) -> list[str]:
    """A record as the table shows it."""
    from trimaran.cost.parameters import total_parameters

    schedule = row["schedule"] if row["pp"] > 1 else "-"
    schedule += f" x{row['virtual_stages']}" if row["virtual_stages"] > 1 else ""
    mark = BEST if best else TIE if row["tie"] else ""
    return [
        str(row["nodes"]),
        f"{total_parameters(asked.model) / 1e9:.4g}B",
        *(str(row[name]) for name in ("dp", "tp", "pp", "micro_batch", "gbs")),
        f"{row['memory_gib']:.{0 if row['memory_gib'] >= 10 else 2}f}GB",
        f"{row['seconds']:.2f}",
        f"{row['tflops']:.2f}",
        f"{row['seconds_low']:.1f}–{row['seconds_high']:.1f}",
        str(row["zero"]),
        row["recompute"],
        "yes" if row["sequence_parallel"] else "no",
        schedule,
        f"{row['bubble']:.1%}",
        row["limited_by"],
        mark,
    ]


def _print(
    asked: "Question", chosen: "Choices", rows: list[list[str]], counts: Any, reasons: list[str], objective: str
) -> None:
    from trimaran.cli.show import console

    best = {"time": "seconds per iteration", "memory": "memory"}.get(objective, "tokens per device-hour")
    title = (
        f"{asked.model.name} on up to {asked.cluster.nodes} nodes of {asked.cluster.name}, {asked.trainer.name},"
        f" {asked.precision}, {asked.optimizer}: best in {best}"
    )
    print_layouts(title, rows)
    out = console()
    out.print(f"TFLOPs per device by the formula {asked.trainer.prints}. Mem: the fullest stage, predicted, in GiB.")
    ties = int(chosen.ties.sum()) - 1
    if ties:
        out.print(f"{TIE} {ties} of these tie with the first: the difference is within what the cost model can tell.")
    widest, share = chosen.interval.dominant[0], chosen.interval.dominant_share[0]
    out.print(f"The interval is widest for {widest}, which alone may move the time by ±{share:.0%}.")
    out.print("[bold]Why this one.[/] " + " ".join(reasons), highlight=False)
    out.print(_left_out(asked, counts), style="dim", highlight=False)


def print_layouts(title: str, rows: list[list[str]]) -> None:
    """One table, or two with numbered rows where the terminal is too narrow for all columns."""
    from trimaran.cli.show import console, table

    out, cut = console(), len(HEADER)
    if out.width >= WIDE:
        out.print(table(title, [*HEADER, *MORE], rows, left=(12, 14, 16, 17)))
        return
    marked = [[str(i), *row[:cut], row[-1]] for i, row in enumerate(rows, 1)]
    out.print(table(title, ["", *HEADER, ""], marked, left=(11,)))
    out.print(table("", ["", *MORE[:-1]], [[str(i), *row[cut:-1]] for i, row in enumerate(rows, 1)], left=(3, 5, 7)))


def _left_out(asked: "Question", counts: Any) -> str:
    from trimaran.planner.candidates import cuts_excluded

    cuts = "; ".join(f"{count:,} because {reason}" for reason, count in cuts_excluded(asked).items() if count)
    said = f"{counts.feasible:,} layouts fit, of {counts.considered:,}: {counts.memory:,} need more memory,"
    said += f" {counts.refused:,} are refused by a rule of {asked.trainer.name}'s schedules, recompute or ZeRO."
    return said + (f" Ways to cut the devices left out before: {cuts}." if cuts else "")


def _print_json(
    asked: "Question", chosen: "Choices", counts: Any, reasons: list[str], objective: str, yours: "Compared | None"
) -> None:
    from dataclasses import asdict

    from trimaran.cli.comparing import record_of
    from trimaran.cli.show import print_json
    from trimaran.cost.parameters import total_parameters
    from trimaran.planner.candidates import cuts_excluded

    print_json(
        {
            "model": asked.model.name,
            "parameters": total_parameters(asked.model),
            "cluster": asked.cluster.name,
            "trainer": asked.trainer.name,
            "precision": asked.precision,
            "optimizer": asked.optimizer,
            "objective": objective,
            "counts": asdict(counts) | {"cuts": cuts_excluded(asked)},
            "why": reasons,
            "layouts": [record(asked, chosen, i) for i in range(len(chosen.found))],
            **({} if yours is None else {"yours": record_of(asked, yours)}),
        }
    )


def _markdown(rows: list[list[str]]) -> str:
    """The notes' table; what it has no column for goes into its Notes."""
    lines = ["| " + " | ".join((*HEADER, "Notes")) + " |", "|" + " --: |" * (len(HEADER) + 1)]
    for row in rows:
        values = dict(zip(MORE, row[len(HEADER) :], strict=True))
        notes = f"predicted {values['80 % interval']} s, ZeRO {values['ZeRO']}, recompute {values['recompute']}"
        notes += f", {values['schedule']}" + (", sequence parallel" if values["SP"] == "yes" else "")
        notes += ", yours" if YOURS in values[""] else ""
        lines.append("| " + " | ".join((*row[: len(HEADER)], notes)) + " |")
    return "\n".join(lines) + "\n"


def _save(asked: "Question", chosen: "Choices", path: Path) -> None:
    from trimaran.spec import Mistake
    from trimaran.spec.files import save

    jobs = [asked.job(chosen.found.layout(i)) for i in range(len(chosen.found))]
    try:
        if path.suffix in (".yaml", ".yml", ".json"):
            save(jobs[0], path)
            return
        path.mkdir(parents=True, exist_ok=True)
        digits = len(str(len(jobs)))
        for i, job in enumerate(jobs, 1):
            save(job, path / f"{i:0{digits}d}-{job.name}.yaml")
    except OSError as error:
        raise Mistake(f"{path} cannot be written: {error.strerror}.") from None
