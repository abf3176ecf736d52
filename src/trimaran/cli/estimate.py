"""trimaran estimate: days, device-hours, energy and cost of a whole training, against the number of nodes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.cli.plan import FixOption, JsonOption, OnOption, OptimizerOption, PrecisionOption, TrainerOption

if TYPE_CHECKING:
    from trimaran.planner.estimates import Estimate
    from trimaran.planner.question import Question

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
    restart_minutes: Annotated[float, typer.Option(help="From a failure until training goes on.")] = 10.0,
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
    from trimaran.cli.plan import question
    from trimaran.planner.estimates import Failures, Prices, curve, node_counts, on_nodes, tokens_of
    from trimaran.planner.relax import impossible
    from trimaran.spec import Mistake

    _positive("--watts", watts)
    _positive("--price", price)
    _positive("--mtbf-hours", mtbf_hours)
    _positive("--checkpoint-seconds", checkpoint_seconds, zero=True)
    _positive("--restart-minutes", restart_minutes, zero=True)
    wanted = tokens_of(tokens)
    asked = question(model, on, None, gbs, trainer, precision, optimizer, fix)
    counts = node_counts(nodes, asked.cluster)
    failures = None if mtbf_hours is None else Failures(mtbf_hours, checkpoint_seconds, restart_minutes * 60)
    power = asked.cluster.device.power_watts if watts is None else watts
    found, without = curve(asked, counts, wanted, failures, Prices(power, price))
    if not found and all("never ends" in why for why in without.values()):
        raise Mistake(
            f"With {mtbf_hours:g} hours between failures of a node, {counts[0]} nodes fail every"
            f" {(mtbf_hours or 0) * 60 / counts[0]:.3g} minutes, too often to reach a checkpoint: this run never ends."
            " Fewer nodes, shorter checkpoints or shorter restarts are needed."
        )
    if not found:
        raise Mistake(str(impossible(on_nodes(asked, counts))).replace("--fix nodes=", "--nodes "))
    notes = _notes(asked, found, watts, power, failures is not None)
    if json:
        _print_json(asked, wanted, found, without, notes)
    else:
        _print(asked, wanted, found, without, notes)


def _positive(name: str, value: float | None, zero: bool = False) -> None:
    from trimaran.spec import Mistake

    if value is not None and not (0 < value < float("inf") or (zero and value == 0)):
        raise Mistake(f"{name} is {value:g}, but it must be {'at least' if zero else 'above'} zero and finite.")


def _notes(
    asked: "Question", found: list["Estimate"], watts: float | None, power: float | None, failing: bool
) -> list[str]:
    fastest, frugal = min(found, key=lambda e: e.days), min(found, key=lambda e: e.device_hours)
    notes = [f"Soonest: {fastest.nodes} nodes, {_number(fastest.days)} days."]
    if frugal is not fastest:
        more = fastest.device_hours / frugal.device_hours
        notes.append(f"Fewest device-hours: {frugal.nodes} nodes; the soonest uses {more:.3g} times as many.")
    notes.append(f"The interval holds 80 % of measurements; most of it is {fastest.step.dominant}.")
    if watts is None and power is not None:
        notes.append(
            f"Energy: {power:g} W a device, the {asked.cluster.device.name}'s own maximum (give --watts for yours);"
            " hosts, network and cooling are not in it."
        )
    if not failing:
        notes.append("No failures are assumed; --mtbf-hours adds them.")
    return notes


def _record(one: "Estimate") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "nodes": one.nodes,
        "devices": one.devices,
        "layout": one.step.layout.to_dict(),
        "seconds_per_iteration": one.step.seconds,
        "seconds_low": one.step.low,
        "seconds_high": one.step.high,
        "dominant_uncertainty": one.step.dominant,
        "iterations": one.iterations,
        "days": one.days,
        "days_low": one.days_low,
        "days_high": one.days_high,
        "device_hours": one.device_hours,
        "energy_mwh": one.energy_mwh,
        "cost": one.cost,
        "goodput": one.goodput,
        "failures": None if one.failures is None else asdict(one.failures),
    }


def _print_json(
    asked: "Question", tokens: int, found: list["Estimate"], without: dict[int, str], notes: list[str]
) -> None:
    from trimaran.cli.show import print_json

    print_json(
        {
            "model": asked.model.name,
            "cluster": asked.cluster.name,
            "trainer": asked.trainer.name,
            "precision": asked.precision,
            "gbs": asked.batch.size,
            "tokens": tokens,
            "estimates": [_record(one) for one in found],
            "impossible": [{"nodes": nodes, "why": why} for nodes, why in without.items()],
            "notes": notes,
        }
    )


def _print(asked: "Question", tokens: int, found: list["Estimate"], without: dict[int, str], notes: list[str]) -> None:
    from trimaran.cli.show import console, print_table

    header = ["nodes", "devices", "layout", "sec/it", "days", "80 % interval", "device-hours"]
    header += ["MWh"] if found[0].energy_mwh is not None else []
    header += ["cost"] if found[0].cost is not None else []
    header += ["goodput", "fails every", "checkpoint every"] if found[0].failures else []
    print_table(
        f"{asked.model.name} on {asked.cluster.name}: {tokens / 1e9:g}B tokens in {found[0].iterations:,} steps of"
        f" {asked.batch.size}, by {asked.trainer.name} in {asked.precision}",
        header,
        [_cells(one) for one in found],
        left=(2,),
    )
    console().print(_plot(found), highlight=False)
    for nodes, why in without.items():
        print(f"{nodes} nodes: {why}.")
    for note in notes:
        print(note)


def _cells(one: "Estimate") -> list[str]:
    cells = [
        str(one.nodes),
        f"{one.devices:,}",
        layout_text(one.step.layout),
        f"{one.step.seconds:.4g}",
        _number(one.days),
        f"{_number(one.days_low)} to {_number(one.days_high)}",
        f"{one.device_hours:,.0f}",
    ]
    cells += [] if one.energy_mwh is None else [_number(one.energy_mwh)]
    cells += [] if one.cost is None else [f"{one.cost:,.0f}"]
    if one.failures:
        cells += [f"{one.goodput:.1%}", f"{_number(one.failures.mtbf_hours)} h"]
        cells += [f"{_number(one.failures.checkpoint_every_minutes)} min"]
    return cells


def _number(value: float) -> str:
    """Three digits, or all of a large number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def layout_text(layout: Any) -> str:
    """dp x tp x pp and what else is not plain."""
    words = [f"dp {layout.dp} tp {layout.tp} pp {layout.pp} mbs {layout.micro_batch}"]
    words += [f"×{layout.virtual_stages}"] if layout.virtual_stages > 1 else []
    words += [layout.schedule] if layout.pp > 1 else []
    words += [f"ZeRO {layout.zero}"] if layout.zero else []
    words += [f"{layout.recompute} recompute"] if layout.recompute != "none" else []
    words += ["SP"] if layout.sequence_parallel else []
    return " ".join(words)


def _plot(found: list["Estimate"]) -> Any:
    """Days against nodes: training, then what failures cost, and a mark where perfect scaling would end."""
    from rich.text import Text

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
        text.append(f" {_number(one.days)}\n")
    return text
