"""Campaign: measurements that belong together, the prediction beside each, the answer they give and the plan."""

from dataclasses import dataclass

from trimaran.ledger.audit import Finding
from trimaran.planner.plan import Plan
from trimaran.spec import Job, Trial


@dataclass(frozen=True)
class Expected:
    """What the cost model says of a trial."""

    seconds: float
    low: float
    high: float
    memory_gib: float  # of the stage that the measurement is of: the fullest of our runs, the first of published ones
    fits: bool


@dataclass(frozen=True)
class Row:
    trial: Trial
    label: str  # tells it from the others
    expected: Expected | None  # None where too little is known

    @property
    def seconds(self) -> float | None:
        """As measured, of a trial that ended well."""
        return self.trial.outcome.seconds if self.trial.outcome.status == "ok" else None

    @property
    def error(self) -> float | None:
        return None if self.expected is None or self.seconds is None else self.expected.seconds / self.seconds - 1

    @property
    def memory_error(self) -> float | None:
        measured = self.trial.outcome.memory_gib
        if self.expected is None or not measured or self.trial.outcome.status != "ok":
            return None
        return self.expected.memory_gib / measured - 1

    @property
    def failed(self) -> bool:
        return self.trial.outcome.status not in ("ok", "pending", "running")


@dataclass(frozen=True)
class Campaign:
    name: str
    about: str  # who ran it, on what, with what
    rows: tuple[Row, ...]  # the fastest per sample first, failures last
    best: frozenset[str]  # ids: the fastest of each model
    comparable: tuple[Row, ...]  # of one model and batch, measured, the fastest first: the answer is the first of them
    job: Job | None  # of the fastest, where enough is known
    plan: Plan | None  # the planner's answer to the same question
    findings: tuple[Finding, ...]
    commands: tuple[str, ...]  # that do all this again

    @property
    def winner(self) -> Row | None:
        return self.comparable[0] if self.comparable else None

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)
