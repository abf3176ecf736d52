"""What the Ledger answers with, besides trials."""

from dataclasses import dataclass
from typing import Any

from trimaran.ledger.reading import Unread


@dataclass(frozen=True)
class Added:
    """How many of the trials given to add() were new, updated or known."""

    added: int = 0
    updated: int = 0
    known: int = 0


@dataclass(frozen=True)
class Import:
    """A record of one import, with the lines that could not be read."""

    file: str
    at: str
    added: Added
    unread: tuple[Unread, ...]


@dataclass(frozen=True)
class Group:
    """Trials that agree in some columns; `seconds` and `id` are those of the fastest, None where none has a time."""

    key: tuple[Any, ...]
    count: int
    seconds: float | None
    id: str | None
    best: float | None = None  # of the column that decided which is the fastest
