"""`torchrun … -m trimaran.engine JOB [options]`: the same as `trimaran train JOB [options]`."""

import typer

from trimaran.engine.command import train
from trimaran.processes.command import run_command
from trimaran.processes.exit_codes import INTERRUPTED

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    app.command()(train)
    run_command(app, INTERRUPTED)
