"""A sweep's folder: its file, its candidates and the attempts at each. Started once, resumed as often as need be, and
only by one harness at a time."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trimaran.lab import files
from trimaran.lab.choose import Candidate
from trimaran.ledger.store import Ledger
from trimaran.spec import Job, Mistake, Outcome, Setup, Source, Sweep, Trial
from trimaran.spec.files import read_text, save, write_text
from trimaran.spec.trial import Status

SWEEP, NAME = "sweep.yaml", "sweep.json"
TRIALS, CANDIDATES = "trials", "candidates.jsonl"
MAX_ATTEMPTS = 2  # of a trial that was lost with its machine


@dataclass(frozen=True)
class StartedSweep:
    name: str  # unique: the ids of its trials in the ledger begin with it
    sweep: Sweep
    candidates: list[Candidate]


def start_sweep(folder: Path, sweep: Sweep, candidates: list[Candidate]) -> StartedSweep:
    """The file with the name is written last: without it no sweep was started."""
    if (folder / NAME).exists():
        raise Mistake(
            f"A sweep was already started in {folder}: --resume resumes it, --folder puts this one elsewhere."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(sweep, folder / SWEEP)
        write_candidates(folder, candidates)
        name = f"{sweep.name}-{secrets.token_hex(3)}"
        files.write_json(folder / NAME, {"name": name})
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be written: {error.strerror}.") from None
    return StartedSweep(name, sweep, candidates)


def load_sweep_folder(folder: Path) -> StartedSweep:
    named = files.read_json(folder / NAME)
    if named is None:
        raise Mistake(f"No sweep was started in {folder}; start one without --resume.")
    return StartedSweep(named["name"], Sweep.from_yaml(read_text(folder / SWEEP)), read_candidates(folder))


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One harness per sweep: the lock is released with the process, however it ends."""
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


@dataclass
class Attempt:
    """One run of a candidate. There is a second only where the first was lost with its machine."""

    sweep: str  # the unique name
    number: int
    candidate: Candidate
    folder: Path
    attempt: int = 1
    outcome: Outcome | None = None
    waits_for: str = ""  # as the launcher reports, while it is queued

    @property
    def id(self) -> str:
        return f"{self.sweep}/{self.folder.name}"

    @property
    def job(self) -> Job:
        return self.candidate.job

    def trial(self, status: Status | None = None) -> Trial:
        """For the ledger: with its outcome, or with the status of one that has none yet."""
        outcome = self.outcome or Outcome(status=status or "pending")
        source = Source(kind="run", file=str(self.folder), table=self.sweep, label=self.candidate.label)
        return Trial(id=self.id, setup=Setup.of_job(self.job), job=self.job, outcome=outcome, source=source)


def folder_of(sweep: Path, number: int, attempt: int) -> Path:
    return sweep / TRIALS / (f"{number:04d}" if attempt == 1 else f"{number:04d}.{attempt}")


def last_attempt(sweep: Path, number: int) -> int:
    """0 where none was started."""
    attempt = 0
    while (folder_of(sweep, number, attempt + 1) / files.ORDER).exists():
        attempt += 1
    return attempt


def write_candidates(sweep: Path, candidates: list[Candidate]) -> None:
    """Once, so that a resumed sweep has the same trials under the same numbers, whatever was learned meanwhile."""
    lines = [json.dumps({**vars(candidate), "job": candidate.job.to_dict()}) for candidate in candidates]
    write_text(sweep / CANDIDATES, "".join(f"{line}\n" for line in lines))


def read_candidates(sweep: Path) -> list[Candidate]:
    found = []
    for values in files.read_lines(sweep / CANDIDATES):
        job = Job.from_json(json.dumps(values.pop("job")), trusted=True)
        found.append(Candidate(**values, job=job))
    return found


def attempts_of(sweep: str, folder: Path, candidates: list[Candidate], ledger: Ledger) -> list[Attempt]:
    """Every candidate's last attempt, with its outcome where it has ended; a cancelled one is to be run again."""
    found = []
    for number, candidate in enumerate(candidates, start=1):
        tried = last_attempt(folder, number)
        made = Attempt(sweep, number, candidate, folder_of(folder, number, max(1, tried)), max(1, tried))
        known = ledger.get(made.id)
        if known is not None and known.outcome.status not in ("pending", "running"):
            made.outcome = known.outcome
        lost = made.outcome is not None and made.outcome.status == "lost" and tried < MAX_ATTEMPTS
        if lost or (made.outcome is not None and made.outcome.status == "cancelled"):
            made = Attempt(sweep, number, candidate, folder_of(folder, number, tried + 1), tried + 1)
        found.append(made)
    return found
