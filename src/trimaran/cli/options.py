"""Options and arguments that several commands have."""

from typing import Annotated

import typer

MOST_ROWS = 1_000_000  # of a table that is shown

JobArgument = Annotated[
    str, typer.Argument(help="A job file, such as one `trimaran plan --save` wrote, or a preset's name.")
]
OnOption = Annotated[str, typer.Option("--on", help="The cluster: a preset's name, a file, or 'here'.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", help="The most nodes to use; else all of the cluster.")]
TrainerOption = Annotated[str, typer.Option("--trainer", help="The software that runs it.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="Else bf16, or what the device has.")]
OptimizerOption = Annotated[str, typer.Option("--optimizer", help="adam, fused-adam or adam-8bit.")]
FixOption = Annotated[
    list[str] | None,
    typer.Option("--fix", help="Only such layouts: tp=4, mbs=2,4, recompute=full, nodes=48 (repeat it)."),
]
LedgerOption = Annotated[
    str,
    typer.Option("--ledger", help="The ledger file; else $TRIMARAN_LEDGER, else trimaran.sqlite here.", metavar="PATH"),
]
PublishedOption = Annotated[bool, typer.Option("--published", help="The published figures that ship with Trimaran.")]
