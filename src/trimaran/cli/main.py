"""The command `trimaran`: its verbs, and how a mistake is said."""

import atexit
import gc
import os
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
from trimaran.cli.train import train
from trimaran.cli.weights import weights

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
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"trimaran {__version__}")
        raise typer.Exit


INTERRUPTED = 130
YOUNG_OBJECTS = 50_000  # before Python looks through them for garbage, instead of 700


def run() -> None:
    """Exit codes: 0 done, 2 a mistake of the user's (one sentence on stderr), 130 interrupted."""
    # What is imported stays to the end. Looking through all of PyTorch for garbage takes half a second while it is
    # imported, and again when all is over.
    gc.set_threshold(YOUNG_OBJECTS)
    atexit.register(gc.freeze)
    try:
        app(args=with_default_ledger(sys.argv[1:]))
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer caught Ctrl-C
            print("trimaran: interrupted; nothing was written.", file=sys.stderr)
        raise
    except BrokenPipeError:  # `trimaran results | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except ValueError as error:
        from trimaran.spec import Mistake

        if not isinstance(error, Mistake):
            raise
        print(f"trimaran: {error}", file=sys.stderr)
        sys.exit(2)


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
