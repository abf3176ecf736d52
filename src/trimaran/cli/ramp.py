"""trimaran ramp: which nodes and layouts for a batch ramp-up, when to switch, and what schedules by hand lose."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.cli.estimate import layout_text
from trimaran.cli.plan import FixOption, JsonOption, OnOption, OptimizerOption, PrecisionOption, TrainerOption

if TYPE_CHECKING:
    from trimaran.planner.hand_schedules import Stage
    from trimaran.planner.question import Question
    from trimaran.planner.ramping import Phase, Schedule


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
    from trimaran.cli.plan import question
    from trimaran.planner.estimates import tokens_of
    from trimaran.planner.hand_schedules import parse_stages
    from trimaran.planner.ramping import phases
    from trimaran.spec import Mistake

    if not 0 <= switch_minutes < float("inf"):
        raise Mistake(f"--switch-minutes is {switch_minutes:g}, but a switch takes zero minutes or more.")
    if not ramp.strip():
        raise Mistake("--ramp is empty, but a ramp-up is START,INCREMENT,SAMPLES, such as 32,32,9765625.")
    wanted = tokens_of(tokens)
    hands = [(text, parse_stages(text)) for text in compare or []]
    asked = question(model, on, nodes, gbs, trainer, precision, optimizer, fix, ramp)
    asked.check()
    for text, stages in hands:
        for stage in stages:
            if stage.nodes > asked.cluster.nodes:
                raise Mistake(
                    f"--compare {text} uses {stage.nodes} nodes, but at most {asked.cluster.nodes} are allowed."
                )
    run = phases(asked.batch, -(-wanted // asked.model.seq_len))
    best, compared = _plan(asked, run, hands, switch_minutes / 60)
    if json:
        _print_json(asked, wanted, best, compared)
    else:
        _print(asked, wanted, best, compared)


def _plan(
    asked: "Question", run: "Sequence[Phase]", hands: "list[tuple[str, tuple[Stage, ...]]]", switch_hours: float
) -> "tuple[Schedule, list[dict[str, Any]]]":
    """The best schedule, and beside it the rules of thumb and the schedules made by hand."""
    from trimaran.planner.estimates import best_step
    from trimaran.planner.hand_schedules import by_hand, losses, ramp_loss, reason
    from trimaran.planner.ramping import NoLayout, choices_for, practical, single, soonest
    from trimaran.planner.relax import impossible
    from trimaran.spec import Batch

    try:
        searched = practical(asked)
        choices = choices_for(searched, run, switch_hours, _watched)
    except NoLayout:
        searched = asked
        try:
            choices = choices_for(searched, run, switch_hours, _watched)
        except NoLayout as none:
            raise impossible(none.question) from None
    best = soonest(run, choices, switch_hours)

    def fixed(values: "dict[str, frozenset[int]]", base: "Question" = searched) -> "Question":
        return base.replace(fixed={**base.fixed, **values})

    def compared(name: str, schedule: "Schedule | None", passed_over: Sequence[str] = ()) -> dict[str, Any]:
        loss = None if schedule is None else schedule.hours / best.hours - 1
        return {
            "name": name,
            "hours": None if schedule is None else schedule.hours,
            "loss_percent": None if loss is None else 100 * loss,
            "ramp_loss_percent": None if schedule is None else 100 * ramp_loss(best, schedule),
            "schedule": None if schedule is None else _stretches(schedule),
            "losses": []
            if schedule is None
            else [
                {
                    "from_batch": one.stretch.phases[0].batch,
                    "to_batch": one.stretch.phases[-1].batch,
                    "nodes": one.stretch.configuration.nodes,
                    "layout": layout_text(one.stretch.configuration.layout),
                    "hours": one.hours,
                    "percent": 100 * one.share,
                    "why": one.why,
                }
                for one in losses(best, schedule)
            ],
            "reason": "no layout runs every batch" if schedule is None else reason(best, schedule),
            "passed_over": list(passed_over),
        }

    def held(stage: "Stage", part: "Sequence[Phase]") -> "Schedule | None":
        return single(fixed(stage.fixed(), asked), part, switch_hours)

    def why_not(stage: "Stage", batch: int) -> str:
        return str(best_step(fixed(stage.fixed(), asked).replace(batch=Batch(size=batch)), stage.nodes))

    most = asked.cluster.nodes
    everywhere = single(fixed({"nodes": frozenset([most])}), run, switch_hours)
    anywhere = single(searched, run, switch_hours)
    rows = [compared(f"one layout on all {most} nodes", everywhere)]
    if anywhere != everywhere:
        rows.append(compared("one layout, best number of nodes", anywhere))
    for text, stages in hands:
        hand = by_hand(stages, run, held, why_not, switch_hours)
        rows.append(compared(text, hand.schedule, hand.passed_over))
    return best, rows


def _watched(run: "Sequence[Phase]") -> "Iterable[Phase]":
    """A progress bar on the terminal's stderr, where somebody looks."""
    import sys

    if not sys.stderr.isatty():
        return run
    from rich.console import Console
    from rich.progress import track

    return track(run, "Batches of the ramp-up", console=Console(stderr=True), transient=True)


def _stretches(schedule: "Schedule") -> list[dict[str, Any]]:
    return [
        {
            "nodes": s.configuration.nodes,
            "from_batch": s.phases[0].batch,
            "to_batch": s.phases[-1].batch,
            "from_sample": s.phases[0].first_sample,
            "to_sample": s.phases[-1].end_sample,
            "iterations": sum(phase.iterations for phase in s.phases),
            "start_hours": start,
            "hours": s.hours,
            "seconds_first": s.choices[0].seconds,
            "seconds_last": s.choices[-1].seconds,
            "bubble_first": s.choices[0].bubble,
            "bubble_last": s.choices[-1].bubble,
            "micro_batch": s.configuration.layout.micro_batch,
            "layout": s.configuration.layout.to_dict(),
        }
        for start, s in schedule.starts()
    ]


def _print_json(asked: "Question", tokens: int, best: "Schedule", compared: list[dict[str, Any]]) -> None:
    from trimaran.cli.show import print_json

    print_json(
        {
            "model": asked.model.name,
            "cluster": asked.cluster.name,
            "trainer": asked.trainer.name,
            "precision": asked.precision,
            "batch": asked.batch.to_dict(),
            "most_nodes": asked.cluster.nodes,
            "tokens": tokens,
            "switch_minutes": best.switch_hours * 60,
            "hours": best.hours,
            "node_hours": best.node_hours,
            "schedule": _stretches(best),
            "compared": compared,
        }
    )


def _print(asked: "Question", tokens: int, best: "Schedule", compared: list[dict[str, Any]]) -> None:
    from trimaran.cli.show import print_table

    stretches = list(best.starts())
    count = len(stretches) - 1
    switches = f"{count or 'no'} switch{'' if count == 1 else 'es'} of {best.switch_hours * 60:g} minutes"
    print_table(
        f"{asked.model.name} on at most {asked.cluster.nodes} nodes of {asked.cluster.name}: {tokens / 1e9:g}B tokens"
        f" in {best.hours:.4g} hours, {best.node_hours:,.0f} node-hours, {switches}",
        ("from sample", "from hour", "batch", "nodes", "mbs", "layout", "sec/it", "bubble", "hours"),
        [
            (
                f"{s.phases[0].first_sample:,}",
                f"{start:.1f}",
                _range(s.phases[0].batch, s.phases[-1].batch, "d"),
                str(s.configuration.nodes),
                str(s.configuration.layout.micro_batch),
                layout_text(s.configuration.layout),
                _range(s.choices[0].seconds, s.choices[-1].seconds, ".3g"),
                _range(s.choices[0].bubble, s.choices[-1].bubble, ".0%"),
                f"{s.hours:.1f}",
            )
            for start, s in stretches
        ],
        left=(5,),
    )
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
            for row in compared
        ],
        left=(0, 4),
    )
    for row in compared:
        if row["losses"] and row["name"][0].isdigit():  # made by hand: each of its stages
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
