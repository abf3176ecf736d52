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

SWEEP, NAME = "sweep.yaml", "sweep.json"
TRIALS, CANDIDATES = "trials", "candidates.jsonl"
MAX_ATTEMPTS = 2  # of a trial that was lost with its machine


@dataclass(frozen=True)
class StartedSweep:
    name: str  # unique: the ids of its trials in the ledger begin with it
    sweep: Sweep
    candidates: list[Candidate]


def start_sweep(folder: Path, sweep: Sweep, candidates: list[Candidate]) -> StartedSweep:
    """The file with the name is written last: without it no sweep was started. Candidates are written once, so that a
    resumed sweep has the same trials under the same numbers, whatever was learned meanwhile."""
    if (folder / NAME).exists():
        raise Mistake(
            f"A sweep was already started in {folder}: --resume resumes it, --folder puts this one elsewhere."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(sweep, folder / SWEEP)
        lines = [json.dumps({**vars(candidate), "job": candidate.job.to_dict()}) for candidate in candidates]
        write_text(folder / CANDIDATES, "".join(f"{line}\n" for line in lines))
        name = f"{sweep.name}-{secrets.token_hex(3)}"
        files.write_json(folder / NAME, {"name": name})
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be written: {error.strerror}.") from None
    return StartedSweep(name, sweep, candidates)


def load_sweep_folder(folder: Path) -> StartedSweep:
    named = files.read_json(folder / NAME)
    if named is None:
        raise Mistake(f"No sweep was started in {folder}; start one without --resume.")
    candidates = [
        Candidate(**{**values, "job": Job.from_json(json.dumps(values["job"]), trusted=True)})
        for values in files.read_lines(folder / CANDIDATES)
    ]
    return StartedSweep(named["name"], Sweep.from_yaml(read_text(folder / SWEEP)), candidates)


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
    sweep_folder: Path
    number: int
    candidate: Candidate
    attempt: int = 1
    outcome: Outcome | None = None
    waits_for: str = ""  # as the launcher reports, while it is queued

    @property
    def folder(self) -> Path:
        again = f".{self.attempt}" if self.attempt > 1 else ""
        return self.sweep_folder / TRIALS / f"{self.number:04d}{again}"

    @property
    def id(self) -> str:
        return f"{self.sweep}/{self.folder.name}"

    @property
    def job(self) -> Job:
        return self.candidate.job

    def trial(self) -> Trial:
        """For the ledger."""
        outcome = self.outcome or Outcome(status="running")
        source = Source(kind="run", file=str(self.folder), table=self.sweep, label=self.candidate.label)
        return Trial(id=self.id, setup=Setup.of_job(self.job), job=self.job, outcome=outcome, source=source)

    def again(self) -> "Attempt":
        return Attempt(self.sweep, self.sweep_folder, self.number, self.candidate, self.attempt + 1)


def attempts_of(sweep: str, folder: Path, candidates: list[Candidate], ledger: Ledger) -> list[Attempt]:
    """Every candidate's last attempt, with its outcome where it has ended; a cancelled or lost one is run again."""
    attempts = []
    for number, candidate in enumerate(candidates, start=1):
        last = Attempt(sweep, folder, number, candidate)
        while (last.again().folder / files.ORDER).exists():
            last = last.again()
        known = ledger.get(last.id)
        status = known.outcome.status if known else "pending"
        if status in ("cancelled", "lost"):
            last = last.again()
        elif known and status not in ("pending", "running"):
            last.outcome = known.outcome
        attempts.append(last)
    return attempts
