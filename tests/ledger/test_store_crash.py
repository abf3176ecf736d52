"""Nothing acknowledged is lost: killed writers, writers at the same time, full disks, places that cannot be written."""

import multiprocessing
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from tests.disks import fill, make_read_only, small_disk
from tests.ledger.trials import old_ledger
from trimaran.ledger.schema import MIGRATIONS
from trimaran.ledger.store import Added, Filter, Ledger
from trimaran.spec import Mistake, Outcome, Setup, Source, Trial

BATCH = 7  # trials per transaction
KILLS = 24
_fork = multiprocessing.get_context("fork")  # children start in milliseconds: everything is imported already


def trial(name: str, label: str = "", note: str = "") -> Trial:
    return Trial(
        id=name,
        setup=Setup(tp=4, gbs=512),
        outcome=Outcome(status="ok", seconds=1.5),
        source=Source(kind="csv", label=label, note=note),
    )


def batch(number: int) -> list[Trial]:
    return [trial(f"{number}-{part}", label=f"batch {number}", note="x" * 3000) for part in range(BATCH)]


def started(work: Callable[..., None], *arguments: Any) -> ForkProcess:
    child = _fork.Process(target=work, args=arguments)
    child.start()
    return child


def integrity(path: Path) -> str:
    raw = sqlite3.connect(path)
    (found,) = raw.execute("PRAGMA integrity_check").fetchone()
    raw.close()
    return str(found)


def add_batches(path: Path, first: int, acknowledge: int) -> None:
    """Add without end, and say each time what the ledger has taken."""
    with Ledger.open(path) as ledger:
        number = first
        while True:
            assert ledger.add(batch(number)).added == BATCH
            os.write(acknowledge, struct.pack("i", number))
            number += 1


def killed(path: Path, first: int, acks_before: int, seconds_before: float) -> list[int]:
    """Let a writer acknowledge some batches and live a little longer; the batches it had acknowledged when it died."""
    reading, writing = os.pipe()
    child = started(add_batches, path, first, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        seen = pipe.read(4 * acks_before)
        child.join(timeout=seconds_before)  # it does not end by itself: this picks the moment
        assert child.is_alive()
        child.kill()
        seen += pipe.read()
    child.join()
    child.close()
    return [number for (number,) in struct.iter_unpack("i", seen)]


def test_a_kill_at_any_moment_loses_nothing_and_shows_no_half_batch(tmp_path: Path) -> None:
    rng = random.Random(20220311)
    path, acknowledged, unsaid = tmp_path / "ledger.sqlite", set[int](), 0
    for kill in range(KILLS):
        acknowledged |= set(killed(path, 1000 * kill, rng.randrange(1, 6), rng.uniform(0, 0.02)))
        assert integrity(path) == "ok"
        with Ledger.read(path) as ledger:
            groups = ledger.groups(("source_label",))
            there = {int(group.key[0].removeprefix("batch ")) for group in groups}
            assert {group.count for group in groups} == {BATCH}
            assert acknowledged <= there
            unsaid = len(there - acknowledged)  # committed, and killed before it could say so
            assert unsaid <= kill + 1
    with Ledger.read(path) as ledger:
        assert ledger.count() == BATCH * (len(acknowledged) + unsaid)
        for number in acknowledged:
            kept = ledger.get(f"{number}-0")
            assert kept is not None
            assert kept.source.note == "x" * 3000


def test_a_kill_while_the_ledger_is_created_leaves_a_usable_one(tmp_path: Path) -> None:
    rng = random.Random(1)
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.sqlite"
        killed(path, 0, acks_before=0, seconds_before=rng.uniform(0, 0.012))
        with Ledger.open(path) as ledger:
            assert ledger.add([trial("later")]) == Added(added=1)
        assert integrity(path) == "ok"


def test_a_kill_while_an_older_ledger_is_migrated_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(2)
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.sqlite"
        old_ledger(path, batch(0), schema=1 + kill % (len(MIGRATIONS) - 1))
        acknowledged = killed(path, 1, acks_before=0, seconds_before=rng.uniform(0, 0.02))
        with Ledger.open(path) as ledger:
            kept = {trial.id: trial for trial in ledger.trials()}
            assert all(
                kept[trial.id].source == trial.source for number in (0, *acknowledged) for trial in batch(number)
            )
            assert ledger.reading().remarks == ()
        assert integrity(path) == "ok"


WRITERS, EACH, SHIFT = 4, 120, 40  # writer n adds the trials from n * SHIFT on, so neighbours overlap


def add_a_share(path: Path, writer: int, together: Any, results: Any) -> None:
    names = [str(number) for number in range(writer * SHIFT, writer * SHIFT + EACH)]
    random.Random(writer).shuffle(names)
    together.wait()
    added = 0
    for start in range(0, EACH, 10):
        with Ledger.open(path) as ledger:  # opened every time: the first of all makes it
            added += ledger.add(trial(name) for name in names[start : start + 10]).added
    results.put(added)


def test_writers_at_the_same_time_leave_exactly_the_union(tmp_path: Path) -> None:
    path, together, results = tmp_path / "ledger.sqlite", _fork.Barrier(WRITERS, timeout=300), _fork.SimpleQueue()
    children = [started(add_a_share, path, writer, together, results) for writer in range(WRITERS)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * WRITERS
    union = {str(number) for number in range((WRITERS - 1) * SHIFT + EACH)}
    assert sum(results.get() for _ in children) == len(union)
    assert integrity(path) == "ok"
    with Ledger.read(path) as ledger:
        assert {name for (name,) in ledger.rows(("id",))} == union


def make_at_once(folder: Path, writer: int, together: Any) -> None:
    for number in range(25):
        together.wait()
        with Ledger.open(folder / str(number)) as ledger:
            ledger.add([trial(str(writer))])


def test_several_processes_may_make_the_same_ledger_at_the_same_moment(tmp_path: Path) -> None:
    together = _fork.Barrier(WRITERS, timeout=300)
    children = [started(make_at_once, tmp_path, writer, together) for writer in range(WRITERS)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * WRITERS
    for path in tmp_path.iterdir():
        with Ledger.read(path) as ledger:
            assert ledger.count() == WRITERS


# --- real small and read-only disks: root, as in many containers, ignores file permissions


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def test_a_full_disk_keeps_what_was_added_before(disk: Path) -> None:
    path, number, said = disk / "ledger.sqlite", 0, ""
    with Ledger.open(path) as ledger:
        while not said:
            try:
                ledger.add(batch(number))
                number += 1
            except Mistake as mistake:
                said = str(mistake)
        assert said == f"The disk that holds {path} is full; nothing was added."
        assert number > 5
        assert ledger.count() == number * BATCH
    assert integrity(path) == "ok"
    with Ledger.read(path) as ledger:
        assert ledger.count() == number * BATCH
        assert ledger.count([Filter("source_label", "=", f"batch {number}")]) == 0


def test_an_import_too_large_for_the_disk_leaves_the_file_as_it_was(disk: Path) -> None:
    path = disk / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.add(batch(0))
    before = path.read_bytes()
    with pytest.raises(Mistake, match="is full; nothing was added"), Ledger.open(path) as ledger:
        ledger.add(each for number in range(1, 100) for each in batch(number))
    assert path.read_bytes() == before


def test_a_ledger_cannot_be_made_on_a_full_disk(disk: Path) -> None:
    fill(disk)
    path = disk / "ledger.sqlite"
    with pytest.raises(Mistake, match=r"full.*; nothing was changed"):
        Ledger.open(path)
    (disk / "filler").unlink()
    with Ledger.open(path) as ledger:  # whatever the attempt left does not matter
        assert ledger.add(batch(0)).added == BATCH


def test_a_ledger_on_a_read_only_disk_can_be_read_but_not_written(disk: Path) -> None:
    path = disk / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.add(batch(0))
    make_read_only(disk)
    with Ledger.read(path) as ledger:
        assert ledger.count() == BATCH
        with pytest.raises(Mistake, match="read-only; nothing was added"):
            ledger.add(batch(1))
    for where in (path, disk / "new.sqlite"):
        with pytest.raises(Mistake, match="cannot be written: the file, its folder or its disk is read-only"):
            Ledger.open(where)


@pytest.mark.parametrize("exhaust", [fill, make_read_only])
@pytest.mark.parametrize("ends", [("",), ("", "-wal"), ("", "-wal", "-shm")])
def test_every_trial_is_read_on_a_disk_that_takes_no_byte_more(
    disk: Path, tmp_path: Path, ends: tuple[str, ...], exhaust: Callable[[Path], None]
) -> None:
    """Also those of a killed writer, which are in the -wal file only, with and without its -shm file."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(batch(0))
        if len(ends) == 1:
            ledger.close()
        for end in ends:
            shutil.copy(f"{tmp_path}/ledger.sqlite{end}", f"{disk}/ledger.sqlite{end}")
    exhaust(disk)
    before = [Path(f"{disk}/ledger.sqlite{end}").read_bytes() for end in ends[:2]]
    with Ledger.read(disk / "ledger.sqlite") as ledger:
        assert {trial.id for trial in ledger.trials()} == {trial.id for trial in batch(0)}
    assert [Path(f"{disk}/ledger.sqlite{end}").read_bytes() for end in ends[:2]] == before


def test_reading_beside_a_killed_writers_files_changes_neither(tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite"
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(batch(0))
        for end in ("", "-wal"):
            shutil.copy(f"{tmp_path}/ledger.sqlite{end}", f"{path}{end}")
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with Ledger.read(path) as ledger:
        assert ledger.count() == BATCH
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before


def test_a_wal_file_that_sqlite_would_ignore_is_reported_and_kept(tmp_path: Path) -> None:
    """SQLite takes one with a damaged header for empty: an import would overwrite trials that were acknowledged."""
    path = tmp_path / "copy.sqlite"
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(batch(0))
        for end in ("", "-wal"):
            shutil.copy(f"{tmp_path}/ledger.sqlite{end}", f"{path}{end}")
    wal = Path(f"{path}-wal")
    whole = wal.read_bytes()
    damaged = bytearray(whole)
    damaged[17] ^= 4
    wal.write_bytes(damaged)
    for use in (Ledger.read, Ledger.open):
        with pytest.raises(Mistake, match=r"copy\.sqlite-wal is damaged, and it holds the newest trials"):
            use(path)
    assert wal.read_bytes() == damaged
    wal.write_bytes(whole)
    path.write_bytes(b"")
    for use in (Ledger.read, Ledger.open):
        with pytest.raises(Mistake, match=r"copy\.sqlite-wal lies beside .*copy\.sqlite, which has become empty"):
            use(path)
    assert wal.read_bytes() == whole
