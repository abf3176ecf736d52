"""Reading: what a reader made of a file. Nothing is dropped silently: what it could not use is listed with its line."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from trimaran.spec import Trial


@dataclass(frozen=True)
class Unread:
    """A line that looked like a measurement and could not be understood."""

    file: str
    line: int
    text: str
    why: str


@dataclass(frozen=True)
class Reading:
    trials: tuple[Trial, ...] = ()
    unread: tuple[Unread, ...] = ()


def trial_id(*parts: Any) -> str:
    """A name made of the content, so that importing the same thing twice adds nothing."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
