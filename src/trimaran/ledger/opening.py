"""Opening a ledger's file: it may be missing, another program's, read-only, or being created by another process.

Also the one place where errors of SQLite and of the file system become sentences.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import PydanticSerializationError

from trimaran.ledger.schema import MIGRATIONS, migrate, version_of
from trimaran.ledger.wal import has_pending_wal
from trimaran.spec import Mistake

_IMMUTABLE = "mode=ro&immutable=1"  # makes no files beside the ledger, but ignores a -wal file
_WITHOUT_SHM = "mode=ro&vfs=unix-none"
_NO_SHM = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)


def ledger_path(given: str | Path | None) -> Path:
    """The ledger a command means: the one given, else $TRIMARAN_LEDGER, else trimaran.sqlite in this folder."""
    return Path(given or os.environ.get("TRIMARAN_LEDGER") or "trimaran.sqlite").expanduser()


@contextmanager
def sentences(path: Path, undone: str = "") -> Iterator[None]:
    """Turn errors of SQLite and of the file system into a Mistake; `undone` says what did not happen."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a bug of ours, not a bad file
    except (sqlite3.Error, OSError, UnicodeError, PydanticSerializationError) as error:
        what = _describe(path, error)
        raise Mistake(f"{what}; {undone}." if undone else f"{what}.") from error


def _describe(path: Path, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError | PydanticSerializationError):  # a file name that is not UTF-8
        return f"{path} cannot hold a text that is not valid Unicode, such as some file's name ({error})"
    if isinstance(error, OSError):
        return f"{path} cannot be opened: {error.strerror}"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # absent when its text is not UTF-8
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return f"{path} is not a ledger: it is not an SQLite file, or it is damaged from its first byte on"
        case sqlite3.SQLITE_FULL:
            return f"The disk that holds {path} is full"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return f"{path} is being written by another process, which did not finish in time"
        case sqlite3.SQLITE_READONLY:
            return f"{path} cannot be written: the file, its folder or its disk is read-only"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return f"{path} cannot be opened here; if a -wal file lies beside it, copy both to a folder you can write"
        case sqlite3.SQLITE_IOERR:
            return f"{path}: its disk reports an error ({error}); it may be full, over quota, or failing"
    return damaged(path, error)


def damaged(path: Path, what: object) -> str:
    what = " ".join(str(what).split())[:160]  # SQLite quotes the text that it cannot decode
    return f"{path} is damaged ({what}); restore it from a copy, or save what is left with `sqlite3 {path} .recover`"


def open_for_writing(path: Path, create: bool, wait_seconds: float) -> tuple[sqlite3.Connection, bool]:
    """The connection, and whether the file was an older ledger that now has today's tables."""
    with sentences(path, "nothing was changed"):
        exists = _exists(path)
        older = exists and _version(path, wait_seconds) < len(MIGRATIONS)
        if not exists and not create:
            raise Mistake(f"There is no ledger {path}.")
        if not _is_writable(path):
            raise Mistake(f"{path} cannot be written: the file, its folder or its disk is read-only.")
        connection = _connect(path, "mode=rwc" if create else "mode=rw", wait_seconds)
        with closed_on_error(connection):
            _use_wal(connection, wait_seconds)
            migrate(connection, path)
    return connection, older


def open_for_reading(path: Path, wait_seconds: float) -> tuple[sqlite3.Connection, bool]:
    """Likewise; an older ledger is copied into memory and migrated there, so that its file stays as it is."""
    with sentences(path):
        if not _exists(path):
            raise Mistake(f"There is no ledger {path}.")
        older = _version(path, wait_seconds) < len(MIGRATIONS)
        # Where it can, even a reader opens the file for writing (and then forbids itself to write): otherwise
        # SQLite would leave its -wal and -shm files behind.
        connection = _connect_to_read(path, "mode=rw" if _is_writable(path) else _IMMUTABLE, wait_seconds)
        with closed_on_error(connection):
            return (_migrated_copy(connection, path), True) if older else (connection, False)


def _exists(path: Path) -> bool:
    """Whether there is a file to open; a place where none can be is a Mistake."""
    if path.is_dir():
        raise Mistake(f"{path} is a folder; a ledger is one file, such as {path / 'trimaran.sqlite'}.")
    if path.exists() and not path.is_file():
        raise Mistake(f"{path} is not a plain file, so it cannot be a ledger.")
    if not path.parent.is_dir():
        raise Mistake(f"There is no folder {path.parent} for the ledger {path.name}; make it, or give another path.")
    return path.exists()


def _is_writable(path: Path) -> bool:
    """SQLite needs the folder too, for the files it keeps beside the ledger."""
    file = path.resolve()
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def _version(path: Path, wait_seconds: float) -> int:
    """The schema version, read without changing anything, since the file may be another program's.

    Never by open(path): closing that would drop the locks this process holds on the file through SQLite.
    """
    if path.stat().st_size == 1:  # SQLite would treat it as an empty file, and overwrite it
        raise Mistake(f"{path} is not a ledger: it is not an SQLite file.")
    connection = _connect_to_read(path, _IMMUTABLE, wait_seconds)
    try:
        return version_of(connection, path)
    finally:
        connection.close()


def _connect_to_read(path: Path, mode_without_wal: str, wait_seconds: float) -> sqlite3.Connection:
    """Changes neither the ledger nor its -wal file, which a connection that may write would merge when it is closed."""
    pending = has_pending_wal(path)
    try:
        connection = _connect(path, "mode=ro" if pending else mode_without_wal, wait_seconds)
        with closed_on_error(connection):
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _NO_SHM:
            raise
    # The disk is full or read-only, so there is no -shm file. Nobody else can write then, and no lock is needed.
    return _connect(path, _WITHOUT_SHM if pending else _IMMUTABLE, wait_seconds)


def _connect(path: Path, mode: str, wait_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=wait_seconds, isolation_level=None
    )
    with closed_on_error(connection):
        if mode == _WITHOUT_SHM:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # keeps in memory what the -shm file would hold
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")  # KiB: a large import then writes most pages once
        connection.execute("PRAGMA cell_size_check = ON")  # finds more kinds of damage
    return connection


def _use_wal(connection: sqlite3.Connection, wait_seconds: float) -> None:
    """Needed once per file. When two processes create it at the same moment SQLite refuses one without waiting."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _migrated_copy(old: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    new = sqlite3.connect(":memory:", isolation_level=None)
    with closed_on_error(new):
        old.backup(new)
        migrate(new, path)
    old.close()
    return new


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
