"""Exported: the files that make another trainer run a Job, and what of the Job that trainer cannot be told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cannot:
    """A field of the Job that the trainer has no word for."""

    field: str  # its dotted path, such as layout.schedule
    why: str  # a sentence that also says what is done instead


@dataclass(frozen=True)
class Exported:
    files: dict[str, str]  # name -> text; a script's name ends in .sh or .slurm
    cannot: tuple[Cannot, ...] = ()
