"""trimaran export: a Job as the launch files of another trainer."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trimaran.cli.show import JsonOption, print_json
from trimaran.export.adapt import LaunchFiles
from trimaran.export.formats import TARGETS
from trimaran.export.quoting import one_line, plain_name
from trimaran.processes.command import SettingsOption
from trimaran.spec import Mistake
from trimaran.spec.files import write_files
from trimaran.spec.settings import load_job_with

Target = Literal["megatron-deepspeed", "megatron-lm", "torchtitan", "deepspeed-json", "slurm", "trimaran"]
SCRIPTS = (".sh", ".slurm")


def export(
    job: Annotated[str, typer.Argument(help="A job file, or a preset's name.")],
    to: Annotated[Target, typer.Option("--to", help="The trainer whose files to write.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write them into; without it a single file is printed."),
    ] = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Write a job as the launch files of another trainer, ready to run, and list what that trainer does not support.

    Several files go into a folder named after the job unless -o names one. `trimaran import` reads them back.

    Example: `trimaran export examples/jobs/bloom-176b.yaml --to megatron-deepspeed -o bloom`
    """
    loaded = load_job_with(job, settings or [])
    launch_files = TARGETS[to](loaded)
    if json:
        if output is not None:
            write(launch_files, output)
        unsupported = [vars(each) for each in launch_files.unsupported]
        print_json({"files": launch_files.files, "cannot": unsupported})
        return
    if output is None and len(launch_files.files) == 1:
        print(next(iter(launch_files.files.values())), end="")
    else:
        folder = output or Path(plain_name(loaded.name))
        write(launch_files, folder)
        print(f"{folder}: {', '.join(launch_files.files)}")
    if launch_files.unsupported:  # on stderr, so that a file that is printed stays a file
        print(f"Not supported by {to}:", file=sys.stderr)
    for each in launch_files.unsupported:
        print(f"  {one_line(f'{each.field}: {each.why}')}", file=sys.stderr)


def write(launch_files: LaunchFiles, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{folder} cannot be made a folder: {error.strerror}.") from None
    contents = {folder / name: text.encode() for name, text in launch_files.files.items()}
    write_files(contents)
    for path in contents:
        if path.suffix in SCRIPTS:
            path.chmod(path.stat().st_mode | 0o111)
