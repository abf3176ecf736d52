"""The trials of a sweep as they stand in its folder: which are to do, under way, done."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from trimaran.lab import files
from trimaran.lab.choose import Candidate
from trimaran.ledger.store import Ledger
from trimaran.spec import Job, Outcome, Setup, Source, Trial
from trimaran.spec.trial import Status

TRIALS, CANDIDATES = "trials", "candidates.jsonl"
ATTEMPTS = 2  # of a trial that was lost with its machine


@dataclass
class Attempt:
    """One try of a candidate. A second one is made only where the first was lost with its machine."""

    sweep: str  # a name that no other sweep has
    number: int
    candidate: Candidate
    folder: Path
    attempt: int = 1
    outcome: Outcome | None = None
    told: list[str] = field(default_factory=list)  # by the launcher, while it waits

    @property
    def id(self) -> str:
        return f"{self.sweep}/{self.folder.name}"

    @property
    def job(self) -> Job:
        return self.candidate.job

    def trial(self, status: Status | None = None) -> Trial:
        """For the ledger: as it is, or with a status on the way."""
        outcome = self.outcome or Outcome(status=status or "pending")
        source = Source(kind="run", file=str(self.folder), table=self.sweep, label=self.candidate.label)
        return Trial(id=self.id, setup=Setup.of_job(self.job), job=self.job, outcome=outcome, source=source)


def folder_of(sweep: Path, number: int, attempt: int) -> Path:
    return sweep / TRIALS / (f"{number:04d}" if attempt == 1 else f"{number:04d}.{attempt}")


def last_attempt(sweep: Path, number: int) -> int:
    """0 where none was begun."""
    found = 0
    while (folder_of(sweep, number, found + 1) / files.ORDER).exists():
        found += 1
    return found


def write_candidates(sweep: Path, candidates: list[Candidate]) -> None:
    """Once, so that a sweep that goes on has the same trials under the same numbers, whatever was learnt meanwhile."""
    lines = [json.dumps({**vars(candidate), "job": candidate.job.to_dict()}) for candidate in candidates]
    partial = sweep / f".{CANDIDATES}.partial"
    partial.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    partial.replace(sweep / CANDIDATES)


def read_candidates(sweep: Path) -> list[Candidate]:
    found = []
    for values in files.read_lines(sweep / CANDIDATES):
        job = Job.from_json(json.dumps(values.pop("job")), trusted=True)
        found.append(Candidate(**values, job=job))
    return found


def attempts_of(sweep: str, folder: Path, candidates: list[Candidate], ledger: Ledger) -> list[Attempt]:
    """Every candidate's last attempt, with its outcome where it has ended; one that was cancelled is to do again."""
    found = []
    for number, candidate in enumerate(candidates, start=1):
        tried = last_attempt(folder, number)
        made = Attempt(sweep, number, candidate, folder_of(folder, number, max(1, tried)), max(1, tried))
        known = ledger.get(made.id)
        if known is not None and known.outcome.status not in ("pending", "running"):
            made.outcome = known.outcome
        lost = made.outcome is not None and made.outcome.status == "lost" and tried < ATTEMPTS
        if lost or (made.outcome is not None and made.outcome.status == "cancelled"):
            made = Attempt(sweep, number, candidate, folder_of(folder, number, tried + 1), tried + 1)
        found.append(made)
    return found
