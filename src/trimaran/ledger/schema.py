"""The ledger's tables as a list of migrations, and which part of a trial goes into which column.

The document is the trial; every other column repeats a part of it so that SQLite can filter, sort and group.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from trimaran.spec import Mistake, Trial

APPLICATION_ID = 0x5472_696D  # "Trim": distinguishes a ledger from any other SQLite file

# A released migration is never edited: change the tables by adding one. Statements end with ';', which must not
# occur anywhere else. Documents have their own table, so that a scan of the columns need not read them: that makes
# wide indexes for the usual groupings unnecessary, which would double the time of an import.
MIGRATIONS = (
    """
    CREATE TABLE trials (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        framework TEXT, device TEXT, nodes INTEGER, devices INTEGER,
        size_label TEXT, layers INTEGER, hidden INTEGER, heads INTEGER, seq_len INTEGER,
        dp INTEGER, tp INTEGER, pp INTEGER, virtual_stages INTEGER, zero INTEGER,
        mbs INTEGER, gbs INTEGER, recompute TEXT, precision TEXT, optimizer TEXT,
        status TEXT NOT NULL, seconds REAL, memory_gib REAL, tflops REAL, tokens_per_second REAL,
        seconds_per_sample REAL,
        source_kind TEXT NOT NULL, source_file TEXT NOT NULL, source_line INTEGER,
        source_section TEXT NOT NULL, source_table TEXT NOT NULL, source_label TEXT NOT NULL, date TEXT NOT NULL,
        corrects TEXT, recorded_at TEXT NOT NULL
    );
    CREATE TABLE documents (number INTEGER PRIMARY KEY, document TEXT NOT NULL);
    CREATE INDEX trials_by_seconds ON trials (seconds IS NULL, seconds, id);
    CREATE INDEX trials_by_source ON trials (source_file, source_line);
    CREATE INDEX trials_by_correction ON trials (corrects) WHERE corrects IS NOT NULL;
    """,
    """
    CREATE TABLE imports (
        file TEXT NOT NULL,
        at TEXT NOT NULL,
        trials INTEGER NOT NULL,
        added INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        unread TEXT NOT NULL
    );
    CREATE INDEX imports_by_file ON imports (file, at);
    """,
    """
    CREATE TABLE remarks (id TEXT PRIMARY KEY, remark TEXT NOT NULL);
    """,
)

_SETUP = (
    *("framework", "device", "nodes", "devices"),
    *("size_label", "layers", "hidden", "heads", "seq_len"),
    *("dp", "tp", "pp", "virtual_stages", "zero"),
    *("mbs", "gbs", "recompute", "precision", "optimizer"),
)
_OUTCOME = ("status", "seconds", "memory_gib", "tflops", "tokens_per_second")
_SOURCE = ("kind", "file", "line", "section", "table", "label")
COLUMNS = (
    *("id", *_SETUP, *_OUTCOME, "seconds_per_sample"),
    *(f"source_{name}" for name in _SOURCE),
    *("date", "corrects", "recorded_at"),
)
TEXT_COLUMNS = frozenset(
    {
        *("id", "framework", "device", "size_label", "recompute", "precision", "optimizer", "status"),
        *("source_kind", "source_file", "source_section", "source_table", "source_label"),
        *("date", "corrects", "recorded_at"),
    }
)

LARGEST = 2**63 - 1  # SQLite's integer

_of_setup = attrgetter(*_SETUP)
_of_outcome = attrgetter(*_OUTCOME)
_of_source = attrgetter(*_SOURCE, "date")


def row(trial: Trial) -> tuple[Any, ...]:
    """The trial as a row of `trials`, in the order of COLUMNS.

    An integer beyond SQLite's largest (a misread line has them) is clipped in its column; the document keeps it.
    """
    seconds, gbs = trial.outcome.seconds, trial.setup.gbs
    values = (
        trial.id,
        *_of_setup(trial.setup),
        *_of_outcome(trial.outcome),
        seconds / min(gbs, LARGEST) if seconds is not None and gbs is not None else None,
        *_of_source(trial.source),
        trial.corrects,
        trial.recorded_at,
    )
    return tuple(LARGEST if type(value) is int and value > LARGEST else value for value in values)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Takes the write lock at once, so that what is read inside cannot change before it is written."""
    with connection:  # commits, or rolls back what SQLite has not: after some errors, a full disk for one, it has
        connection.execute("BEGIN IMMEDIATE")
        yield


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema version of a ledger, 0 for an empty file; anything else that SQLite can open is a Mistake."""
    connection.execute("SAVEPOINT look")  # one look: between two, another process may make the ledger
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    empty = application == version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    connection.execute("RELEASE look")
    if empty:
        return 0
    if application != APPLICATION_ID:
        raise Mistake(f"{path} is another program's SQLite database, not a Trimaran ledger; give another path.")
    if version > len(MIGRATIONS):
        raise Mistake(
            f"{path} was written by a newer Trimaran (schema {version}, this one knows {len(MIGRATIONS)});"
            " upgrade Trimaran to use it."
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables up to date. Of several processes that come at the same moment, one does it."""
    if version_of(connection, path) == len(MIGRATIONS):
        return
    with transaction(connection):
        for script in MIGRATIONS[version_of(connection, path) :]:  # asked again: now nobody else can change it
            for statement in script.split(";"):  # executescript() would commit first
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
