"""Reading: what a reader made of a file. Nothing is dropped silently: what it could not use is listed with its line."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trimaran.spec import Trial


@dataclass(frozen=True)
class Unread:
    """A line that looked like a measurement and could not be understood."""

    file: str
    line: int
    text: str
    why: str


@dataclass(frozen=True)
class Remark:
    """What a source says about its own numbers outside the table: evidence for the audit.

    stated: a heading or sentence gives a value that a column gives otherwise; one-liner: the formula a number was
    computed with; really: a sentence that says the numbers belong to another model.
    """

    kind: Literal["stated", "one-liner", "really"]
    file: str
    line: int
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Remark":
        values = json.loads(text)
        return cls(**{**values, "trials": tuple(values["trials"])})


@dataclass(frozen=True)
class Reading:
    trials: tuple[Trial, ...] = ()
    unread: tuple[Unread, ...] = ()
    remarks: tuple[Remark, ...] = ()


def joined(readings: Iterable[Reading]) -> Reading:
    """Several files as one reading."""
    given = list(readings)
    return Reading(
        tuple(trial for reading in given for trial in reading.trials),
        tuple(line for reading in given for line in reading.unread),
        tuple(remark for reading in given for remark in reading.remarks),
    )


def trial_id(*parts: Any) -> str:
    """A name made of the content, so that importing the same thing twice adds nothing."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
