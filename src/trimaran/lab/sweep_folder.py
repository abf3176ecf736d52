"""A sweep's folder: its file, its candidates and the attempts at each. Started once, resumed as often as need be, and
only by one harness at a time."""

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trimaran.lab import files
from trimaran.lab.choose import Candidate, jobs_of
from trimaran.ledger.store import Ledger
from trimaran.spec import Job, Mistake, Outcome, Setup, Source, Sweep, Trial
from trimaran.spec.files import read_mapping, read_text, save, write_text

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
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_is_private(folder)
        save(sweep, folder / SWEEP)
        lines = [json.dumps({**vars(candidate), "job": candidate.job.to_dict()}) for candidate in candidates]
        write_text(folder / CANDIDATES, "".join(f"{line}\n" for line in lines))
        name = f"{sweep.name}-{secrets.token_hex(3)}"
        files.write_json(folder / NAME, {"name": name})
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be written: {error.strerror}.") from None
    return StartedSweep(name, sweep, candidates)


def load_sweep_folder(folder: Path) -> StartedSweep:
    """Whoever prepared the folder: only what its sweep.yaml says is run."""
    if not (folder / NAME).exists():
        raise Mistake(f"No sweep was started in {folder}; start one without --resume.")
    check_is_private(folder)
    name = (files.read_json(folder / NAME) or {}).get("name")
    if not isinstance(name, str) or not name or "/" in name:
        raise Mistake(f"{folder / NAME} is damaged: it does not name the sweep.")
    sweep = Sweep.of(read_mapping(folder / SWEEP), str(folder / SWEEP))
    described = {job.to_json() for _, job in jobs_of(sweep)[0]}
    found = [_candidate(folder / CANDIDATES, line) for line in read_text(folder / CANDIDATES).splitlines()]
    for candidate in found:
        if candidate.job.to_json() not in described:
            raise Mistake(
                f"{folder / CANDIDATES} has the trial {candidate.label!r}, which {SWEEP} does not describe; start the"
                " sweep again in another folder (--folder)."
            )
    if len(found) != len(described):
        raise Mistake(f"{folder / CANDIDATES} is damaged: it has {len(found)} of {len(described)} trials.")
    return StartedSweep(name, sweep, found)


def _candidate(file: Path, line: str) -> Candidate:
    try:
        values = json.loads(line)
        job = Job.from_json(json.dumps(values["job"]), trusted=True)
        numbers = {name: float(values[name]) for name in ("seconds", "low", "high", "memory_gib")}
        return Candidate(label=str(values["label"]), job=job, fits=bool(values["fits"]), **numbers)
    except (KeyError, TypeError, ValueError):
        raise Mistake(f"{file} is damaged: it has a line that is not a trial.") from None


def check_is_private(folder: Path) -> None:
    """Whoever can write there can replace what a trial runs."""
    trials, status = folder / TRIALS, folder.stat()
    if status.st_uid != os.geteuid():
        raise Mistake(f"{folder} belongs to another user; copy it, and resume the copy.")
    if status.st_mode & stat.S_IWOTH:
        raise Mistake(
            f"Everybody can write to {folder}, and so change what its trials run: `chmod o-w {folder}` first."
        )
    if trials.is_symlink():
        raise Mistake(f"{trials} is a link to {trials.readlink()}; trials are only written inside {folder}.")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One harness per sweep: the lock is released with the process, however it ends."""
    handle = files.lock(folder / files.LOCK)
    if handle is None:
        other = (folder / files.LOCK).read_text(errors="replace").strip()
        other = other if other.isdigit() else "PID"
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
        if known and _is_of_another(known.source.file, last.folder):
            raise Mistake(
                f"{folder} is a copy of {Path(known.source.file).parents[1]}, and its trials have the same ids: resume"
                " the other, or start the sweep anew."
            )
        status = known.outcome.status if known else "pending"
        if status in ("cancelled", "lost"):
            last = last.again()
        elif known and status not in ("pending", "running"):
            last.outcome = known.outcome
        attempts.append(last)
    return attempts


def _is_of_another(recorded: str, folder: Path) -> bool:
    """Whether the trial is still where it was recorded, and that is not here."""
    return bool(recorded) and Path(recorded).exists() and Path(recorded).resolve() != folder.resolve()
