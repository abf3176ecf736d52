"""trimaran estimate: days, device-hours, energy and cost of a whole training, against the number of nodes."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from trimaran.cli.options import FixOption, OnOption, OptimizerOption, PrecisionOption, TrainerOption
from trimaran.cli.show import JsonOption, console, print_json, print_table
from trimaran.planner.estimates import Estimate, NodeEstimate, make_estimate
from trimaran.planner.question import Question
from trimaran.planner.tables import short_number

BAR = 48  # characters of the longest bar


def estimate(
    model: Annotated[str, typer.Argument(help="A preset's name or a file.")],
    on: OnOption,
    gbs: Annotated[int, typer.Option("--gbs", help="Global batch, in samples.")],
    tokens: Annotated[str, typer.Option(help="Tokens to train on, such as 300B or 1.4T.")] = "300B",
    nodes: Annotated[str, typer.Option(help="Numbers of nodes, such as 8,16,32; else doublings up to all.")] = "",
    watts: Annotated[float | None, typer.Option(help="Power of one device; else its data sheet's.")] = None,
    price: Annotated[float | None, typer.Option(help="Price of one device for one hour.")] = None,
    mtbf_hours: Annotated[float | None, typer.Option(help="Mean hours between failures of one node.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="How long a checkpoint stops the training.")] = 60.0,
    restart_minutes: Annotated[float, typer.Option(help="From a failure until training resumes.")] = 10.0,
    fix: FixOption = None,
    trainer: TrainerOption = "trimaran",
    precision: PrecisionOption = "",
    optimizer: OptimizerOption = "adam",
    json: JsonOption = False,
) -> None:
    """How long a training takes and what it costs on each number of nodes, failures included.

    Each row takes the fastest layout that uses all of its nodes. With --mtbf-hours, checkpoints are written at Daly's
    optimal interval, and the days include them, the work that failures undo, and restarts.

    Example: `trimaran estimate bloom-176b --on jean-zay-a100-80gb --gbs 2048 --tokens 366B --nodes 16,32,48
    --price 1.5 --mtbf-hours 10000`
    """
    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    estimated = make_estimate(
        Question.of(model, on, gbs, fix=fix or (), **options),
        tokens,
        nodes,
        watts=watts,
        price=price,
        mtbf_hours=mtbf_hours,
        checkpoint_seconds=checkpoint_seconds,
        restart_minutes=restart_minutes,
    )
    if json:
        print_json(estimated.to_dict())
    else:
        _print(estimated)


def _print(estimated: Estimate) -> None:
    (table,) = estimated.tables()
    print_table(table.title, table.header, table.rows, table.left)
    console().print(_plot(estimated.nodes), highlight=False)
    for note in table.notes:
        print(note)


def _plot(found: Sequence[NodeEstimate]) -> Any:
    """Days against nodes: training, then what failures cost, and a mark where perfect scaling would end."""
    longest = max(one.days for one in found)
    text = Text("days against nodes: █ training, ░ lost to failures and checkpoints, │ if the first row scaled\n")
    for one in found:
        useful = round(BAR * one.days * one.goodput / longest)
        lost = round(BAR * one.days / longest) - useful
        perfect = round(BAR * found[0].days * found[0].nodes / one.nodes / longest)
        bar = list(("█" * useful + "░" * lost).ljust(BAR + 1))
        bar[min(perfect, BAR)] = "│"
        text.append(f"{one.nodes:>6} ")
        text.append("".join(bar[:useful]), "green")
        text.append("".join(bar[useful:]), "yellow")
        text.append(f" {short_number(one.days)}\n")
    return text
