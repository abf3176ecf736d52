"""trimaran export: a Job as the launch files of another trainer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trimaran.processes.command import SettingsOption

if TYPE_CHECKING:
    from trimaran.export.exported import Exported

Target = Literal["megatron-deepspeed", "megatron-lm", "torchtitan", "deepspeed-json", "slurm", "trimaran"]
SCRIPTS = (".sh", ".slurm")


def export(
    job: Annotated[str, typer.Argument(help="A job file, or a preset's name.")],
    to: Annotated[Target, typer.Option("--to", help="Whose files.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write them into; one file alone is else printed."),
    ] = None,
    settings: SettingsOption = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Write a job as the launch files of another trainer, ready to run, and say what that trainer cannot be told.

    Several files go into a folder named after the job unless -o names one. `trimaran import` reads them back.

    Example: `trimaran export examples/jobs/bloom-176b.yaml --to megatron-deepspeed -o bloom`
    """
    from trimaran.export.slurm import plain_name
    from trimaran.export.targets import TARGETS
    from trimaran.spec.files import load_job
    from trimaran.spec.settings import apply_settings

    asked = apply_settings(load_job(job), settings or [])
    exported = TARGETS[to](asked)
    if json:
        from dataclasses import asdict

        from trimaran.cli.show import print_json

        if output is not None:
            write(exported, output)
        print_json(asdict(exported))
        return
    if output is None and len(exported.files) == 1:
        print(next(iter(exported.files.values())), end="")
    else:
        folder = output or Path(plain_name(asked.name))
        write(exported, folder)
        print(f"{folder}: {', '.join(exported.files)}")
    tell(exported, to)


def write(exported: "Exported", folder: Path) -> None:
    from trimaran.spec import Mistake
    from trimaran.spec.files import write_text

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{folder} cannot be made a folder: {error.strerror}.") from None
    for name, text in exported.files.items():
        path = folder / name
        write_text(path, text)
        if path.suffix in SCRIPTS:
            path.chmod(path.stat().st_mode | 0o111)


def tell(exported: "Exported", to: str) -> None:
    """On stderr, so that a file that is printed stays a file."""
    import sys

    if exported.cannot:
        print(f"What {to} cannot be told:", file=sys.stderr)
    for cannot in exported.cannot:
        print(f"  {cannot.field}: {cannot.why}", file=sys.stderr)
