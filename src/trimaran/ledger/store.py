"""Ledger: every trial that was ever measured, in one SQLite file.

Any number of processes on one host may write it at the same time, and a kill at any moment loses nothing that
add() has returned for: the file is in WAL mode with synchronous=FULL, and each add() is one transaction. (WAL shares
memory between the processes, so two hosts must not write one ledger over a network file system.)
A file that is not a good ledger is refused with a sentence and left as it was.
"""

import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from trimaran import __version__
from trimaran.ledger.opening import (
    closed_on_error,
    connect,
    is_there,
    is_writable,
    look_at,
    read_mode,
    renewed,
    sentences,
    use_wal,
)
from trimaran.ledger.query import Condition, Value, filtered, known, operands, ordered
from trimaran.ledger.reading import Unread
from trimaran.ledger.schema import COLUMNS, MIGRATIONS, migrate, row, transaction
from trimaran.spec import Mistake, Trial
from trimaran.spec.mistake import sentence

__all__ = ["Added", "Condition", "Group", "Import", "Ledger", "ledger_path"]

_ALL_COLUMNS = ", ".join((*COLUMNS, "document"))
_INSERT = f"INSERT INTO trials ({_ALL_COLUMNS}) VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
_REPLACE = f"UPDATE trials SET ({_ALL_COLUMNS}) = ({', '.join('?' * (len(COLUMNS) + 1))}) WHERE id = ?"


def ledger_path(given: str | None) -> Path:
    """The ledger a command means: the one given, else $TRIMARAN_LEDGER, else trimaran.sqlite in this folder."""
    return Path(given or os.environ.get("TRIMARAN_LEDGER") or "trimaran.sqlite").expanduser()


@dataclass(frozen=True)
class Added:
    """What became of the trials given to add()."""

    added: int = 0
    updated: int = 0
    known: int = 0


@dataclass(frozen=True)
class Import:
    """One import as it went, with what could not be read."""

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


class Ledger:
    """Made by Ledger.open (to write) or Ledger.read; used in a `with`, or closed by hand."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, create: bool = True, wait_seconds: float = 30.0) -> Self:
        """For writing; an older ledger is brought up to date. `wait_seconds`: patience with other writers."""
        with sentences(path, "nothing was changed"):
            if is_there(path):
                look_at(path, wait_seconds)
            elif not create:
                raise Mistake(f"There is no ledger {path}.")
            if not is_writable(path):
                raise Mistake(f"{path} cannot be written: the file, its folder or its disk is read-only.")
            connection = connect(path, "mode=rwc" if create else "mode=rw", wait_seconds)
            with closed_on_error(connection):
                use_wal(connection, wait_seconds)
                migrate(connection, path)
        return cls(connection, path)

    @classmethod
    def read(cls, path: Path, *, wait_seconds: float = 30.0) -> Self:
        """For reading only, from a place that cannot be written too. An older ledger is read through a new copy."""
        with sentences(path):
            if not is_there(path):
                raise Mistake(f"There is no ledger {path}.")
            version = look_at(path, wait_seconds)
            # Where it can, even a reader opens the file for writing (and then forbids itself to write): otherwise
            # SQLite would leave its -wal and -shm files behind.
            connection = connect(path, "mode=rw" if is_writable(path) else read_mode(path), wait_seconds)
            with closed_on_error(connection):
                if version < len(MIGRATIONS):
                    connection = renewed(connection, path)
                connection.execute("PRAGMA query_only = ON")
        return cls(connection, path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, trials: Iterable[Trial]) -> Added:
        """All of them or, after an error, none. A known trial stays as it is, unless it is a log that has grown."""
        given = list(trials)  # before the lock is taken: whoever makes them may be slow
        stamps = {"code_version": __version__, "host": socket.gethostname(), "recorded_at": _now()}
        added = updated = 0
        with sentences(self.path, "nothing was added"), transaction(self._connection):
            execute = self._connection.execute
            for trial in given:
                stored = execute("SELECT document FROM trials WHERE id = ?", (trial.id,)).fetchone()
                if stored is None:
                    execute(_INSERT, row(_stamped(trial, stamps)))
                    added += 1
                elif trial.source.kind in ("log", "run") and _has_grown(self._parsed(trial.id, *stored), trial):
                    execute(_REPLACE, (*row(_stamped(trial, stamps)), trial.id))
                    updated += 1
        return Added(added, updated, len(given) - added - updated)

    def record_import(self, file: str, added: Added, unread: Sequence[Unread]) -> None:
        """Keep what an import did, above all what it could not read."""
        total = added.added + added.updated + added.known
        lines = json.dumps([asdict(line) for line in unread])
        values = (file, _now(), total, added.added, added.updated, lines)
        with sentences(self.path, "the import was not recorded"), transaction(self._connection):
            self._connection.execute("INSERT INTO imports VALUES (?, ?, ?, ?, ?, ?)", values)

    def imports(self) -> list[Import]:
        """Every import, the oldest first."""
        query = "SELECT file, at, trials - added - updated, added, updated, unread FROM imports ORDER BY rowid"
        return [
            Import(file, at, Added(added, updated, known_before), self._lines(unread))
            for file, at, known_before, added, updated, unread in self._select(query)
        ]

    def get(self, trial_id: str) -> Trial | None:
        for (document,) in self._select("SELECT document FROM trials WHERE id = ?", [trial_id]):
            return self._parsed(trial_id, document)
        return None

    def count(self, where: Sequence[Condition] = ()) -> int:
        ((number,),) = self._select(f"SELECT count(*) FROM trials{filtered(where)}", operands(where))
        return int(number)

    def trials(
        self,
        where: Sequence[Condition] = (),
        order: str = "seconds",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[Trial]:
        """Whole trials; those that do not know the `order` column come last in either direction."""
        query = f"SELECT id, document FROM trials{filtered(where)}{ordered(order, descending, limit, where)}"
        return [self._parsed(*found) for found in self._select(query, operands(where))]

    def rows(
        self,
        columns: Sequence[str],
        where: Sequence[Condition] = (),
        order: str = "seconds",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Some columns only: what a table or a plot needs, without parsing a document."""
        query = f"SELECT {known(columns)} FROM trials{filtered(where)}{ordered(order, descending, limit, where)}"
        return self._select(query, operands(where))

    def groups(self, by: Sequence[str], where: Sequence[Condition] = (), fastest_by: str = "seconds") -> list[Group]:
        """Trials that agree in the columns `by`, sorted by these columns, each with its fastest."""
        # SQLite takes the bare columns from the row where min() was found. The `+`: as in query.ordered().
        key = ", ".join(f"+{column}" for column in by) if where else known(by)
        fastest = f"min({known((fastest_by,))}), seconds, id"
        query = f"SELECT count(*), {fastest}, {known(by)} FROM trials{filtered(where)} GROUP BY {key}"
        unknown_last = ", ".join(f"{column} IS NULL, {column}" for column in by)
        found = self._select(f"{query} ORDER BY {unknown_last}", operands(where))
        return [
            Group(tuple(key), n, None, None) if best is None else Group(tuple(key), n, seconds, id_, best)
            for n, best, seconds, id_, *key in found
        ]

    def _select(self, query: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        with sentences(self.path):
            return self._connection.execute(query, values).fetchall()

    def _lines(self, unread: str) -> tuple[Unread, ...]:
        try:
            return tuple(Unread(**line) for line in json.loads(unread))
        except (ValueError, TypeError):
            raise Mistake(f"{self.path} is damaged: it holds a record of an import that cannot be read.") from None

    def _parsed(self, trial_id: str, document: str) -> Trial:
        try:
            return Trial.from_json(document, trusted=True)
        except ValidationError as error:
            raise Mistake(
                f"{self.path} is damaged, or was written by a newer Trimaran:"
                f" {sentence(error, f'the trial {trial_id}')}"
            ) from None


def _has_grown(old: Trial, new: Trial) -> bool:
    """Whether a log or run, seen again, says more than the last time."""
    if new.outcome == old.outcome:
        return False
    unfinished = old.outcome.status in ("pending", "running")
    return unfinished or (new.outcome.iterations or 0) >= (old.outcome.iterations or 0)


def _stamped(trial: Trial, stamps: dict[str, str]) -> Trial:
    missing = {name: value for name, value in stamps.items() if not getattr(trial, name)}
    return trial.model_copy(update=missing) if missing else trial


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
