"""The command `trimaran` and its verbs."""

import sys
from typing import Annotated

import typer

from trimaran import __version__
from trimaran.cli.audit import audit
from trimaran.cli.data import data
from trimaran.cli.estimate import estimate
from trimaran.cli.explain import explain
from trimaran.cli.export import export
from trimaran.cli.fit import fit
from trimaran.cli.flops import flops
from trimaran.cli.importing import import_
from trimaran.cli.learn import learn
from trimaran.cli.memory import memory
from trimaran.cli.plan import plan
from trimaran.cli.predicting import predict, score
from trimaran.cli.presets import presets
from trimaran.cli.probe import probe
from trimaran.cli.ramp import ramp
from trimaran.cli.report import report
from trimaran.cli.results import results
from trimaran.cli.sample import sample
from trimaran.cli.shape import shape
from trimaran.cli.sweep import sweep
from trimaran.cli.weights import weights
from trimaran.engine.command import train
from trimaran.processes.command import run_command

app = typer.Typer(
    name="trimaran",
    help="Find the fastest data × tensor × pipeline layout for training a large language model, prove it, train on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Start with `trimaran presets`, then `trimaran import --published` and `trimaran results`.",
)
app.command("presets")(presets)
app.command("plan")(plan)
app.command("ramp")(ramp)
app.command("estimate")(estimate)
app.command("explain")(explain)
app.command("memory")(memory)
app.command("shape")(shape)
app.command("train")(train)
app.command("sweep")(sweep)
app.add_typer(probe, name="probe")
app.add_typer(data, name="data")
app.add_typer(weights, name="weights")
app.command("sample")(sample)
app.command("fit")(fit)
app.command("export")(export)
app.command("flops")(flops)
app.command("import")(import_)
app.command("audit")(audit)
app.command("results")(results)
app.command("report")(report)
app.command("learn")(learn)
app.command("predict")(predict)
app.command("score")(score)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"trimaran {__version__}")
        raise typer.Exit


def run() -> None:
    run_command(lambda: app(args=with_default_ledger(sys.argv[1:])))


def with_default_ledger(arguments: list[str]) -> list[str]:
    """`trimaran audit --ledger` without a path means the default ledger; click cannot express an optional value."""
    if arguments[:1] != ["audit"] or "--ledger" not in arguments:
        return arguments
    after = arguments.index("--ledger") + 1
    if after < len(arguments) and not arguments[after].startswith("-"):
        return arguments
    return [*arguments[:after], "", *arguments[after:]]


if __name__ == "__main__":
    run()
