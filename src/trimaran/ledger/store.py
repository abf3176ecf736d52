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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import ValidationError

from trimaran import __version__
from trimaran.ledger.opening import closed_on_error, damaged, ledger_path, open_for_reading, open_for_writing, sentences
from trimaran.ledger.query import Filter, column_list, order_clause, where_clause
from trimaran.ledger.reading import Reading, Remark, Unread, trial_id
from trimaran.ledger.records import Added, Group, Import
from trimaran.ledger.schema import COLUMNS, row, transaction
from trimaran.spec import Mistake, Trial
from trimaran.spec.mistake import validation_message

if TYPE_CHECKING:
    from trimaran.ledger.audit import Corrected

__all__ = ["Added", "Filter", "Group", "Import", "Ledger", "ledger_path"]

T = TypeVar("T")

_KEEP_COLUMNS = f"INSERT OR REPLACE INTO trials (number, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})"
_KEEP_DOCUMENT = "INSERT OR REPLACE INTO documents (number, document) VALUES (?, ?)"
_REPLACED = "SELECT corrects FROM trials WHERE corrects IS NOT NULL"
_STORED = "SELECT number, document FROM trials JOIN documents USING (number) WHERE id = ?"


class Ledger:
    """`Ledger(path)` opens one that exists, `Ledger.open` also creates it, `Ledger.read` never writes; use it in a
    `with`, or close it."""

    def __init__(self, path: str | Path | None = None, connection: sqlite3.Connection | None = None) -> None:
        """Without a path: $TRIMARAN_LEDGER, else trimaran.sqlite in this folder."""
        self.path = ledger_path(path)
        self._connection: sqlite3.Connection = connection or type(self).open(self.path, create=False)._connection

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}): {self.count()} trials"

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True, wait_seconds: float = 30.0) -> Self:
        """For writing; an older ledger is migrated. `wait_seconds`: how long to wait for other writers."""
        path = Path(path)
        connection, older = open_for_writing(path, create, wait_seconds)
        ledger = cls(path, connection)
        with closed_on_error(connection):
            if older:
                ledger.correct()
        return ledger

    @classmethod
    def open_checked(cls, path: str | Path) -> Self:
        """The same, but any damage is a Mistake before anything is changed: correct() reads and writes all of it."""
        if os.path.exists(path):
            with cls.read(path) as stored:
                ((found,),) = stored._select("PRAGMA integrity_check(1)")
                if found != "ok":
                    raise Mistake(f"{damaged(stored.path, found)}.")
                stored.reading()
                stored.trials([Filter("corrects", "!=", None)])
        return cls.open(path)

    @classmethod
    def read(cls, path: str | Path, *, wait_seconds: float = 30.0) -> Self:
        """For reading only, which also works where nothing can be written."""
        path = Path(path)
        connection, older = open_for_reading(path, wait_seconds)
        ledger = cls(path, connection)
        with closed_on_error(connection), sentences(path):
            if older:
                ledger.correct()
            connection.execute("PRAGMA query_only = ON")
        return ledger

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, trials: Iterable[Trial]) -> Added:
        """All of them or, after an error, none. A known trial stays as it is, unless it is a log that has grown."""
        given = list(trials)  # before the lock is taken: a generator may be slow
        with sentences(self.path, "nothing was added"), transaction(self._connection):
            return self._insert(given)

    def add_reading(self, file: str, reading: Reading) -> Added:
        """The trials of a file with its remarks, and a record of what could not be read; all or nothing.

        The remarks replace what was said about these trials when they were read before.
        """
        with sentences(self.path, "nothing was added"), transaction(self._connection):
            added = self._insert(reading.trials)
            self._replace_remarks({trial.id for trial in reading.trials}, reading.remarks)
            total = added.added + added.updated + added.known
            lines = json.dumps([asdict(line) for line in reading.unread])
            values = (file, _now(), total, added.added, added.updated, lines)
            self._connection.execute("INSERT INTO imports VALUES (?, ?, ?, ?, ?, ?)", values)
        return added

    def _insert(self, given: Sequence[Trial]) -> Added:
        stamps = {"code_version": __version__, "host": socket.gethostname(), "recorded_at": _now()}
        kept: dict[str, tuple[int, Trial]] = {}
        (first,) = self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM trials").fetchone()
        number = first
        for trial in given:
            old = kept.get(trial.id) or self._stored(trial.id)
            if old is None:
                kept[trial.id] = number, trial
                number += 1
            elif trial.source.kind in ("log", "run") and _has_grown(old[1], trial):
                kept[trial.id] = old[0], trial
        rows = [(number, _stamped(trial, stamps)) for number, trial in kept.values()]
        self._connection.executemany(_KEEP_COLUMNS, ((number, *row(trial)) for number, trial in rows))
        self._connection.executemany(_KEEP_DOCUMENT, ((number, trial.to_json()) for number, trial in rows))
        added = number - first
        return Added(added, len(kept) - added, len(given) - len(kept))

    def _replace_remarks(self, about: set[str], remarks: Sequence[Remark]) -> None:
        replaced = [(key,) for key, old in self._remarks().items() if about & set(old.trials)]
        self._connection.executemany("DELETE FROM remarks WHERE id = ?", replaced)
        # The id is made of the content, as a trial's is, so that the same notes under another path add nothing.
        rows = [(trial_id(r.kind, r.text, r.values, r.trials), r.to_json()) for r in remarks]
        self._connection.executemany("INSERT OR IGNORE INTO remarks VALUES (?, ?)", rows)

    def _remarks(self) -> dict[str, Remark]:
        found = self._connection.execute("SELECT id, remark FROM remarks").fetchall()
        return {key: self._decoded(Remark.from_json, text) for key, text in found}

    def reading(self) -> Reading:
        """What was read into the ledger, as the readers gave it: the input of `audit` and `corrected`."""
        with sentences(self.path):
            remarks = tuple(self._remarks().values())
        return Reading(tuple(self.trials([Filter("corrects", "=", None)], order="source_line")), remarks=remarks)

    def corrected(self, where: Sequence[Filter] = ()) -> "Corrected":
        """The corrected view of the trials that match. All others are evidence for it too."""
        from trimaran.ledger.audit import corrected

        view = corrected(self.reading())
        if not where:
            return view
        matching = {id_ for (id_,) in self.rows(("id",), where)}
        stored = {id_ for (id_,) in self.rows(("id",), (Filter("corrects", "!=", None),))}
        # A corrected trial must match itself; one that is not stored yet, after a kill, is found by the printed one.
        trials = [t for t in view.trials if (t.id if t.id in stored else t.corrects or t.id) in matching]
        return replace(view, trials=tuple(trials))

    def correct(self) -> "Corrected":
        """Audit everything, and keep a corrected trial beside each that has a forced correction.

        They replace earlier corrections, which further evidence may have changed. Done after every import, so that
        the ledger's columns hold the same corrected view that report, score and learn compute.
        """
        view = self.corrected()
        audited = {trial.corrects or trial.id for trial in view.trials}  # another process may add more meanwhile
        current = {trial.id for trial in view.corrections}
        with sentences(self.path, "nothing was corrected"), transaction(self._connection):
            stored = self._connection.execute("SELECT number, id, corrects FROM trials WHERE corrects IS NOT NULL")
            stale = [(number,) for number, id_, of in stored.fetchall() if of in audited and id_ not in current]
            self._connection.executemany("DELETE FROM trials WHERE number = ?", stale)
            self._connection.executemany("DELETE FROM documents WHERE number = ?", stale)
            self._insert(view.corrections)
        return view

    def _stored(self, trial_id: str) -> tuple[int, Trial] | None:
        """The number and content of a trial that the ledger has."""
        found = self._connection.execute(_STORED, (trial_id,)).fetchone()
        return None if found is None else (found[0], self._parsed(trial_id, found[1]))

    def imports(self) -> list[Import]:
        """Every import, the oldest first."""
        query = "SELECT file, at, trials - added - updated, added, updated, unread FROM imports ORDER BY rowid"
        return [
            Import(file, at, Added(added, updated, known_before), self._decoded(_unread_lines, unread))
            for file, at, known_before, added, updated, unread in self._select(query)
        ]

    def get(self, trial_id: str) -> Trial | None:
        with sentences(self.path):
            found = self._stored(trial_id)
        return found[1] if found else None

    def count(self, where: Sequence[Filter] = ()) -> int:
        ((number,),) = self._select(f"SELECT count(*) FROM trials{where_clause(where)}", where)
        return int(number)

    def trials(
        self,
        where: Sequence[Filter] = (),
        order: str = "seconds",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[Trial]:
        """Whole trials; those that do not know the `order` column come last in either direction."""
        # The inner query is cut and sorted first, so that only the documents of its rows are read.
        ids = f"SELECT id, number FROM trials{where_clause(where)}{order_clause(order, descending, limit, where)}"
        document = "(SELECT document FROM documents WHERE documents.number = found.number)"
        query = f"SELECT id, {document} FROM ({ids}) AS found"
        return [self._parsed(*found) for found in self._select(query, where)]

    def rows(
        self,
        columns: Sequence[str],
        where: Sequence[Filter] = (),
        order: str = "seconds",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Some columns only: what a table or a plot needs, without parsing a document."""
        ordered = order_clause(order, descending, limit, where)
        return self._select(f"SELECT {column_list(columns)} FROM trials{where_clause(where)}{ordered}", where)

    def groups(self, by: Sequence[str], where: Sequence[Filter] = (), fastest_by: str = "seconds") -> list[Group]:
        """Trials that agree in the columns `by`, sorted by these columns, each with its fastest.

        A printed trial that a correction replaces is never the fastest.
        """
        # SQLite takes the bare columns from the row where min() was found. The `+`: as in query.order_clause().
        key = ", ".join(f"+{column}" for column in by) if where else column_list(by)
        fastest = f"min(CASE WHEN id NOT IN ({_REPLACED}) THEN {column_list((fastest_by,))} END), seconds, id"
        query = f"SELECT count(*), {fastest}, {column_list(by)} FROM trials{where_clause(where)} GROUP BY {key}"
        unknown_last = ", ".join(f"{column} IS NULL, {column}" for column in by)
        found = self._select(f"{query} ORDER BY {unknown_last}", where)
        return [
            Group(tuple(key), n, None, None) if best is None else Group(tuple(key), n, seconds, id_, best)
            for n, best, seconds, id_, *key in found
        ]

    def _select(self, query: str, where: Sequence[Filter] = ()) -> list[tuple[Any, ...]]:
        with sentences(self.path):
            return self._connection.execute(query, [each.operand() for each in where]).fetchall()

    def _decoded(self, decode: Callable[[str], T], text: str) -> T:
        try:
            return decode(text)
        except (ValueError, TypeError, KeyError):
            raise Mistake(f"{self.path} is damaged: it holds a record of an import that cannot be read.") from None

    def _parsed(self, trial_id: str, document: str) -> Trial:
        try:
            return Trial.from_json(document, trusted=True)
        except ValidationError as error:
            raise Mistake(
                f"{self.path} is damaged, or was written by a newer Trimaran:"
                f" {validation_message(error, f'the trial {trial_id}')}"
            ) from None


def _unread_lines(text: str) -> tuple[Unread, ...]:
    return tuple(Unread(**line) for line in json.loads(text))


def _has_grown(old: Trial, new: Trial) -> bool:
    """Whether a log or run that is read again has more iterations, or has ended."""
    if new.outcome == old.outcome:
        return False
    unfinished = old.outcome.status in ("pending", "running")
    return unfinished or (new.outcome.iterations or 0) >= (old.outcome.iterations or 0)


def _stamped(trial: Trial, stamps: dict[str, str]) -> Trial:
    missing = {name: value for name, value in stamps.items() if not getattr(trial, name)}
    return trial.model_copy(update=missing) if missing else trial


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
