"""A sweep's folder: begun once, gone on with as often as need be, by one harness at a time."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trimaran.lab import files
from trimaran.lab.choose import Candidate
from trimaran.lab.trials import read_candidates, write_candidates
from trimaran.spec import Mistake, Sweep
from trimaran.spec.files import read_text, save

SWEEP, NAME = "sweep.yaml", "sweep.json"


@dataclass(frozen=True)
class Begun:
    name: str  # that no other sweep has: its trials' names in the ledger begin with it
    sweep: Sweep
    candidates: list[Candidate]


def begin(folder: Path, sweep: Sweep, candidates: list[Candidate]) -> Begun:
    """The file with the name comes last: without it nothing was begun."""
    if (folder / NAME).exists():
        raise Mistake(
            f"A sweep was begun in {folder} already: --resume goes on with it, --folder puts this one elsewhere."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(sweep, folder / SWEEP)
        write_candidates(folder, candidates)
        name = f"{sweep.name}-{secrets.token_hex(3)}"
        files.write_json(folder / NAME, {"name": name})
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be written: {error.strerror}.") from None
    return Begun(name, sweep, candidates)


def resume(folder: Path) -> Begun:
    named = files.read_json(folder / NAME)
    if named is None:
        raise Mistake(f"No sweep was begun in {folder}; start one without --resume.")
    return Begun(named["name"], Sweep.from_yaml(read_text(folder / SWEEP)), read_candidates(folder))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One harness for a sweep: the lock goes with the process, however it ends."""
    handle = files.lock(folder / files.LOCK)
    if handle is None:
        other = (folder / files.LOCK).read_text().strip()
        raise Mistake(
            f"The sweep in {folder} is being run by process {other}; wait for it, or stop it with `kill -INT {other}`."
        )
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)
