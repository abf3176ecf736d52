"""trimaran ramp: which nodes and layouts for a batch ramp-up, when to switch, and what schedules by hand lose."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from trimaran.cli.options import FixOption, OnOption, OptimizerOption, PrecisionOption, TrainerOption
from trimaran.cli.show import JsonOption, print_json, print_table
from trimaran.planner.question import Question
from trimaran.planner.ramp import Phase
from trimaran.planner.ramp_plan import RampPlan, plan_ramp
from trimaran.planner.tables import short_layout
from trimaran.spec import Mistake


def ramp(
    model: Annotated[str, typer.Argument(help="A preset's name or a file.")],
    on: OnOption,
    gbs: Annotated[int, typer.Option("--gbs", help="The full global batch, in samples.")],
    ramp: Annotated[str, typer.Option(help="START,INCREMENT,SAMPLES as Megatron has it.")],
    nodes: Annotated[int | None, typer.Option(help="The most nodes to use; else all of the cluster.")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens of the whole run, such as 300B.")] = "300B",
    switch_minutes: Annotated[float, typer.Option(help="What a change of nodes or layout costs.")] = 10.0,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="A schedule by hand: nodes:batch:micro batch[:tp:pp],… (repeat it for more)."),
    ] = None,
    fix: FixOption = None,
    trainer: TrainerOption = "trimaran",
    precision: PrecisionOption = "",
    optimizer: OptimizerOption = "adam",
    json: JsonOption = False,
) -> None:
    """Plan a batch ramp-up: the nodes, micro batch and layout for each batch, so that the run ends soonest.

    Example: `trimaran ramp gpt-1b3 --on jean-zay-v100-16gb --nodes 64 --gbs 512 --ramp 32,32,2000000
    --trainer megatron-deepspeed-2022 --compare 16:32:1,16:64:2,16:128:4,32:256:4,64:512:4`
    """
    if not ramp.strip():
        raise Mistake("--ramp is empty, but a ramp-up is START,INCREMENT,SAMPLES, such as 32,32,9765625.")
    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    question = Question.of(model, on, gbs, nodes, ramp=ramp, fix=fix or (), **options)
    planned = plan_ramp(question, tokens, switch_minutes, compare or (), _progress)
    if json:
        print_json(planned.to_dict())
    else:
        _print(planned)


def _progress(run: Sequence[Phase]) -> Iterable[Phase]:
    """A progress bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    return track(run, "Batches of the ramp-up", console=console, transient=True, disable=not console.is_terminal)


def _print(planned: RampPlan) -> None:
    question, best = planned.question, planned.best
    stretches = list(best.starts())
    count = len(stretches) - 1
    switches = f"{count or 'no'} switch{'' if count == 1 else 'es'} of {best.switch_hours * 60:g} minutes"
    print_table(
        f"{question.model.name} on at most {question.cluster.nodes} nodes of {question.cluster.name}:"
        f" {planned.tokens / 1e9:g}B tokens in {best.hours:.4g} hours, {best.node_hours:,.0f} node-hours, {switches}",
        ("from sample", "from hour", "batch", "nodes", "mbs", "layout", "sec/it", "bubble", "hours"),
        [
            (
                f"{s.phases[0].first_sample:,}",
                f"{start:.1f}",
                _range(s.phases[0].batch, s.phases[-1].batch, "d"),
                str(s.configuration.nodes),
                str(s.configuration.layout.micro_batch),
                short_layout(s.configuration.layout),
                _range(s.costs[0].seconds, s.costs[-1].seconds, ".3g"),
                _range(s.costs[0].bubble, s.costs[-1].bubble, ".0%"),
                f"{s.hours:.1f}",
            )
            for start, s in stretches
        ],
        left=(5,),
    )
    others = [(other, other.to_dict()) for other in planned.others]
    print_table(
        "What others lose, by the same cost model",
        ("schedule", "hours", "loss", "in the ramp-up", "mostly"),
        [
            (
                row["name"],
                "" if row["hours"] is None else f"{row['hours']:.4g}",
                "cannot run" if row["hours"] is None else f"{row['loss_percent']:.1f} %",
                "" if row["hours"] is None else f"{row['ramp_loss_percent']:.1f} %",
                row["reason"],
            )
            for _, row in others
        ],
        left=(0, 4),
    )
    for other, row in others:
        if row["losses"] and other.by_hand:
            print_table(
                row["name"],
                ("batch", "nodes", "layout", "loss", "slowest, and why"),
                [
                    (
                        _range(one["from_batch"], one["to_batch"], "d"),
                        str(one["nodes"]),
                        one["layout"],
                        f"{one['percent']:.1f} %",
                        one["why"],
                    )
                    for one in row["losses"]
                ],
                left=(2, 4),
            )
        for line in row["passed_over"]:
            print(f"{line}.")


def _range(first: float, last: float, form: str) -> str:
    a, b = format(first, form), format(last, form)
    return a if a == b else f"{a} to {b}"
