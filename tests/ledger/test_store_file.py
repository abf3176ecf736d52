"""Where a ledger may be, which older ones are brought up to date, and which files are refused and stay as they were."""

import hashlib
import shutil
import sqlite3
import string
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.trials import ids, old_ledger, trial
from trimaran.ledger.reading import Reading, Remark
from trimaran.ledger.schema import MIGRATIONS
from trimaran.ledger.store import Added, Ledger, ledger_path
from trimaran.spec import Mistake


def test_the_path_given_comes_before_the_environment_and_that_before_this_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRIMARAN_LEDGER", raising=False)
    assert ledger_path(None) == Path("trimaran.sqlite")
    monkeypatch.setenv("TRIMARAN_LEDGER", "/data/ours.sqlite")
    assert ledger_path(None) == Path("/data/ours.sqlite")
    assert ledger_path("mine.sqlite") == Path("mine.sqlite")


def test_reading_leaves_no_files_behind(path: Path) -> None:
    Ledger.open(path).close()
    with Ledger.read(path) as ledger:
        ledger.count()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_ledger_read_cannot_be_added_to(path: Path) -> None:
    Ledger.open(path).close()
    with Ledger.read(path) as ledger, pytest.raises(Mistake, match="nothing was added"):
        ledger.add([trial("a")])


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS)))
def test_an_older_ledger_is_brought_up_to_date_with_its_trials(path: Path, schema: int) -> None:
    trials = [trial(str(number), seconds=1.0 + number, tp=2) for number in range(50)]
    old_ledger(path, trials, schema)
    remark = Remark("really", "notes.md", 3, "really a 58B model", {"size_label": "58B"}, ("7",))
    with Ledger.open(path) as ledger:
        assert ledger.trials() == trials
        assert ledger.imports() == []
        assert ledger.add_reading("a", Reading(tuple(trials), remarks=(remark,))) == Added(known=50)
        assert len(ledger.imports()) == 1
        assert ledger.reading().remarks == (remark,)
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS)))
def test_an_older_ledger_can_be_read_without_changing_it(path: Path, schema: int) -> None:
    old_ledger(path, [trial("a")], schema)
    before = contents(path.parent)
    with Ledger.read(path) as ledger:
        assert ids(ledger.trials()) == ["a"]
        assert (ledger.imports(), ledger.reading().remarks) == ([], ())
    assert contents(path.parent) == before


def test_an_older_ledger_is_read_and_opened_with_its_forced_corrections(path: Path) -> None:
    """Older versions stored a correction only when asked to. These TFLOPs say 384 devices, so dp is 8."""
    shape = {"layers": 72, "hidden": 14336, "ffn_hidden": 57344, "heads": 64, "seq_len": 2048, "vocab": 250880}
    layout = {"devices": 384, "dp": 4, "tp": 8, "pp": 6, "mbs": 4, "gbs": 2048, "recompute": "full"}
    printed = trial("a", seconds=121.48, tflops=132.71, tflops_formula="exact", **shape, **layout)
    old_ledger(path, [printed], schema=2)
    for use in (Ledger.read, Ledger.open, Ledger.read):
        with use(path) as ledger:
            assert [(each.corrects, each.setup.dp) for each in ledger.trials(order="dp")] == [(None, 4), ("a", 8)]


# --- what is refused, and stays as it was


def contents(folder: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir() if each.is_file()}


def not_sqlite(path: Path) -> None:
    path.write_text("| nodes | seconds |\n" * 400)


def a_few_bytes(path: Path) -> None:
    path.write_text("todo")


def one_byte(path: Path) -> None:
    path.write_text("?")  # SQLite by itself takes such a file for an empty one


def other_program(path: Path, journal: str = "delete") -> None:
    raw = sqlite3.connect(path)
    raw.executescript(f"PRAGMA journal_mode = {journal}; CREATE TABLE songs (name); INSERT INTO songs VALUES ('x');")
    raw.close()


def other_program_in_wal_mode(path: Path) -> None:
    other_program(path, "wal")


def newer(path: Path) -> None:
    Ledger.open(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 7")
    raw.close()


def damaged_from_the_start(path: Path) -> None:
    damaged_later(path)
    path.write_bytes(b"\xff" * 200 + path.read_bytes()[200:])


def damaged_later(path: Path) -> None:
    """The first page is good, so that only a query can notice."""
    with Ledger.open(path) as ledger:
        ledger.add(trial(str(number), seconds=1.0, size_label="x" * 500) for number in range(300))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def truncated(path: Path) -> None:
    damaged_later(path)
    path.write_bytes(path.read_bytes()[: 3 * 4096])


def without_its_table(path: Path) -> None:
    Ledger.open(path).close()
    raw = sqlite3.connect(path)
    raw.execute("DROP TABLE trials")
    raw.close()


def with_a_damaged_document(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.add([trial("a", kind="log", size_label="104B")])
    path.write_bytes(path.read_bytes().replace(b'"size_label":', b'"size+label":'))


def with_bytes_that_are_no_text(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.add([trial("a", kind="log", size_label="104B")])
    path.write_bytes(path.read_bytes().replace(b'"size_label":', b'"size\xfflabel":'))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (not_sqlite, "is not a ledger: it is not an SQLite file"),
        (a_few_bytes, "is not a ledger: it is not an SQLite file"),
        (one_byte, "is not a ledger: it is not an SQLite file"),
        (other_program, "another program's SQLite database"),
        (other_program_in_wal_mode, "another program's SQLite database"),
        (newer, rf"newer Trimaran \(schema 7, this one knows {len(MIGRATIONS)}\); upgrade"),
        (damaged_from_the_start, "is not a ledger: .* damaged"),
        (damaged_later, "is damaged"),
        (truncated, "is damaged"),
        (without_its_table, "is damaged"),
        (with_a_damaged_document, "is damaged, or was written by a newer Trimaran: the trial a has an unknown key"),
        (with_bytes_that_are_no_text, "is damaged"),
    ],
)
def test_a_bad_ledger_gets_a_sentence_and_stays_as_it_was(path: Path, make: Any, says: str) -> None:
    make(path)
    before = contents(path.parent)
    with pytest.raises(Mistake, match=says), Ledger.read(path) as ledger:
        ledger.trials()
    assert contents(path.parent) == before
    with pytest.raises(Mistake, match=says), Ledger.open(path) as ledger:
        ledger.add([trial("new"), trial("a", kind="log", iterations=3)])
    assert contents(path.parent) == before


def test_another_programs_pending_writes_are_not_merged(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE songs (name)")
    before = contents(path.parent)
    with pytest.raises(Mistake, match="another program's"):
        Ledger.open(path)
    assert {path.name, f"{path.name}-wal"} <= set(before)
    after = contents(path.parent)
    assert (after[path.name], after[f"{path.name}-wal"]) == (before[path.name], before[f"{path.name}-wal"])
    raw.close()


def test_places_where_no_ledger_can_be(tmp_path: Path) -> None:
    for use in (Ledger.open, Ledger.read):
        with pytest.raises(Mistake, match=r"is a folder; a ledger is one file, such as .*trimaran\.sqlite"):
            use(tmp_path)
        with pytest.raises(Mistake, match=r"There is no folder .*missing for the ledger a"):
            use(tmp_path / "missing" / "a")
        with pytest.raises(Mistake, match="not a plain file"):
            use(Path("/dev/null"))
        with pytest.raises(Mistake, match="cannot be opened: File name too long"):
            use(tmp_path / ("x" * 300))
    with pytest.raises(Mistake, match="There is no ledger"):
        Ledger.read(tmp_path / "none")
    with pytest.raises(Mistake, match="There is no ledger"):
        Ledger.open(tmp_path / "none", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_hold_any_characters(tmp_path: Path) -> None:
    path = tmp_path / f"{string.punctuation.replace('/', '')} Größe %41 ?mode=ro#.sqlite"
    with Ledger.open(path) as ledger:
        ledger.add([trial("a")])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_another_process_that_writes_too_long(path: Path) -> None:
    with Ledger.open(path, wait_seconds=0.01) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Mistake, match=r"being written by another process.*; nothing was added"):
            ledger.add([trial("a")])
        assert ledger.count() == 0  # reading goes on meanwhile
        other.execute("COMMIT")
        assert ledger.add([trial("a")]) == Added(added=1)
        other.close()


def test_a_copy_taken_while_it_is_open_holds_everything(path: Path, tmp_path: Path) -> None:
    """The trials are still in the -wal file: whoever copies both files gets them."""
    with Ledger.open(path) as ledger:
        ledger.add([trial("a")])
        shutil.copy(path, tmp_path / "copy")
        shutil.copy(f"{path}-wal", tmp_path / "copy-wal")
    with Ledger.read(tmp_path / "copy") as copied:
        assert ids(copied.trials()) == ["a"]
