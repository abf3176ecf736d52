"""The command `trimaran` and its verbs."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trimaran import __version__
from trimaran.processes.command import CTRL_C, run_command
from trimaran.processes.exit_codes import INTERRUPTED

# The first sentence of each command's help, so that `trimaran --help` imports none of them.
SUMMARIES = """
presets: List the models, clusters, trainers, jobs and sweeps that commands accept by name, or show one as YAML.
plan: Find the fastest layout: every one that fits, predicted and ranked by seconds per iteration.
ramp: Plan a batch ramp-up: the nodes, micro batch and layout for each batch, so that the run ends soonest.
estimate: How long a training takes and what it costs on each number of nodes, failures included.
explain: Show where the memory of each stage and the time of a step go, and the pipeline's timeline.
memory: Show the exact memory of one rank of our trainer by part, beside the cost model's prediction.
shape: Find the shape of a given size that trains fastest: layers x hidden x heads, each in its best layout.
train: Train a job: start a process for every device of its layout, step, and print a line for each iteration.
sweep: Run every layout of a sweep as its own trial, the fastest predicted first; all of them go into the ledger.
sample: Continue a text with a model, on the CPU. The tokenizer is that of the data it was trained on.
fit: Find the fewest nodes that train a model, or the largest model that some nodes train, with tokens per second.
export: Write a job as the launch files of another trainer, ready to run, and list what that trainer does not support.
flops: FLOPs of a training step by each named formula, with MFU and HFU, and which formula a printed figure used.
import: Read measurements into the ledger: trainers' logs, notes with tables, CSV files. Recognised by content.
audit: Find what is wrong in measurements, why, and what the value must have been.
results: Show what was measured: filter, sort, group, compare. Ranked by seconds per iteration, never by TFLOPs.
report: Write one HTML file: the answer first, all trials, figures, failures, audit findings, and how to reproduce it.
learn: Fit a cluster's constants to measured trials, judge the fit on tables left out, and write a cluster file.
predict: Predict seconds, memory and fit of every configuration in a CSV.
score: Predictions against measurements, per table: error, bias, interval, fit or out of memory, rank and regret.
probe: Measure this hardware while all ranks are busy, and write a cluster file with its constants and their sources.
data: Tokenize texts into Megatron's indexed datasets, and show what is in them.
weights: Export weights to Hugging Face's transformers, and import them from there.
"""
COMMANDS = dict(line.split(": ", 1) for line in SUMMARIES.strip().splitlines())
PLACES = {  # module and name of those that are not trimaran.cli.NAME.NAME
    "train": ("trimaran.engine.command", "train"),
    "import": ("trimaran.cli.importing", "import_"),
    "predict": ("trimaran.cli.predicting", "predict"),
    "score": ("trimaran.cli.predicting", "score"),
}


class CommandGroup(TyperGroup):
    """Lists commands by their summaries, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


def load_command(name: str) -> Any:
    module, attribute = PLACES.get(name, (f"trimaran.cli.{name}", name))
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    single.command(name)(found)
    return typer.main.get_command(single)


app = typer.Typer(
    name="trimaran",
    cls=CommandGroup,
    help="Find the fastest data × tensor × pipeline layout for training a large language model, prove it, train on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Start with `trimaran presets`, then `trimaran import --published` and `trimaran results`.",
)
for command, summary in COMMANDS.items():
    app.command(command, help=summary)(lambda: None)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"trimaran {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    pass


def run() -> None:
    starts_ranks = {"train": INTERRUPTED, "probe": CTRL_C}
    run_command(lambda: app(args=with_default_ledger(sys.argv[1:])), starts_ranks.get("".join(sys.argv[1:2])))


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
