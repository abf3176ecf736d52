"""The ledger keeps trials exactly, answers questions about them, and refuses what is not a good ledger."""

import hashlib
import shutil
import sqlite3
import string
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trimaran
from trimaran.ledger.reading import Unread
from trimaran.ledger.schema import APPLICATION_ID, COLUMNS, MIGRATIONS, TEXT_COLUMNS, row
from trimaran.ledger.store import Added, Condition, Group, Ledger, ledger_path
from trimaran.spec import Batch, Job, Layout, Mistake, Outcome, Setup, Source, Trial, presets


def trial(name: str, *, kind: Any = "csv", status: Any = "ok", **known: Any) -> Trial:
    """A trial of which only what is `known` is known: fields of Setup, Outcome or Source."""

    def part(noun: Any) -> dict[str, Any]:
        return {key: value for key, value in known.items() if key in noun.model_fields}

    return Trial(
        id=name,
        setup=Setup(**part(Setup)),
        outcome=Outcome(status=status, **part(Outcome)),
        source=Source(kind=kind, **part(Source)),
    )


def whole_job() -> Job:
    return Job(
        model=presets.model("gpt-1b3"),
        cluster=presets.cluster("jean-zay-v100-32gb").replace(nodes=1),
        trainer=presets.trainer("megatron-deepspeed-2022"),
        layout=Layout(dp=4),
        batch=Batch(size=64),
        precision="fp16",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Any:
    with Ledger.open(path) as opened:
        yield opened


# --- what goes in comes out

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
amounts = st.floats(0, allow_infinity=False, exclude_min=True)
counts = st.one_of(st.integers(1, 200), st.integers(1))  # a misread line may hold any number
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=4,
)
trial_strategy = st.builds(
    Trial,
    id=words,
    setup=st.builds(
        Setup,
        framework=st.none() | words,
        size_label=st.none() | words,
        layers=st.none() | counts,
        tp=st.none() | counts,
        gbs=st.none() | counts,
        zero=st.none() | st.integers(0, 3),
        sequence_parallel=st.none() | st.booleans(),
        recompute=st.sampled_from((None, "none", "selective", "full")),
        freq_ghz=st.none() | amounts,
        environment=st.dictionaries(words, words, max_size=3),
    ),
    job=st.none() | st.builds(whole_job),
    outcome=st.builds(
        Outcome,
        status=st.sampled_from(("pending", "ok", "oom", "hang", "lost")),
        reason=words,
        seconds=st.none() | amounts,
        iterations=st.none() | st.integers(0),
        memory_by_stage_gib=st.lists(amounts, max_size=3).map(tuple),
        last_loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    source=st.builds(
        Source,
        kind=st.sampled_from(("run", "log", "notes", "csv", "published")),
        file=words,
        line=st.none() | counts,
        label=words,
        note=words,
    ),
    corrects=st.none() | words,
    corrections=st.dictionaries(words, json_values, max_size=3),
    code_version=st.just("0.0.1"),
    host=st.just("somewhere"),
    recorded_at=st.just("2022-03-11T12:00:00+00:00"),
)


@settings(max_examples=60)
@given(st.lists(trial_strategy, max_size=4, unique_by=lambda each: each.id))
def test_a_trial_comes_back_exactly(trials: list[Trial]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.sqlite")
        with Ledger.open(path) as ledger:
            assert ledger.add(trials) == Added(added=len(trials))
        with Ledger.read(path) as ledger:
            assert sorted(ledger.trials(), key=lambda each: each.id) == sorted(trials, key=lambda each: each.id)
            for one in trials:
                assert ledger.get(one.id) == one


def test_every_column_holds_its_part_of_the_trial(ledger: Ledger) -> None:
    given = trial("a", tp=4, gbs=512, seconds=64.0, file="notes.md", line=7, table="t", date="2022-03-11")
    ledger.add([given])
    (found,) = ledger.rows(("tp", "seconds_per_sample", "source_file", "source_line", "source_table", "date", "status"))
    assert found == (4, 0.125, "notes.md", 7, "t", "2022-03-11", "ok")


def test_the_columns_named_in_python_are_those_of_the_table(path: Path, ledger: Ledger) -> None:
    with sqlite3.connect(path) as raw:
        types = {name: kind for _, name, kind, *_ in raw.execute("PRAGMA table_info(trials)")}
    raw.close()
    assert tuple(types) == ("number", *COLUMNS)
    assert {name for name in COLUMNS if types[name] == "TEXT"} == TEXT_COLUMNS


def test_adding_says_who_recorded_it_when_and_with_what(ledger: Ledger) -> None:
    ledger.add([trial("a"), trial("b").replace(host="elsewhere", recorded_at="2021-01-01")])
    a, b = ledger.get("a"), ledger.get("b")
    assert a is not None
    assert b is not None
    assert a.code_version == b.code_version == trimaran.__version__
    assert a.host
    assert a.recorded_at.endswith("+00:00")
    assert (b.host, b.recorded_at) == ("elsewhere", "2021-01-01")


# --- known trials and growing logs


def test_a_known_trial_is_left_alone(ledger: Ledger) -> None:
    assert ledger.add([trial("a", seconds=1.0), trial("a", seconds=2.0)]) == Added(added=1, known=1)
    assert ledger.add([trial("a", seconds=3.0)]) == Added(known=1)
    assert ledger.rows(("seconds",)) == [(1.0,)]


@pytest.mark.parametrize(
    ("old", "new", "wins"),
    [
        ({"iterations": 10, "seconds": 2.0}, {"iterations": 20, "seconds": 1.9}, True),
        ({"iterations": 10, "seconds": 2.0}, {"iterations": 10, "seconds": 2.0}, False),
        ({"iterations": 20, "seconds": 1.9}, {"iterations": 10, "seconds": 2.0}, False),
        ({"iterations": 20}, {"status": "fail"}, False),
        ({"status": "running", "iterations": 20}, {"status": "fail"}, True),
        ({"status": "pending"}, {"status": "running"}, True),
    ],
)
@pytest.mark.parametrize("kind", ["log", "run"])
def test_a_log_that_has_grown_replaces_what_was_read_before(
    ledger: Ledger, kind: str, old: dict[str, Any], new: dict[str, Any], wins: bool
) -> None:
    ledger.add([trial("a", kind=kind, **old)])
    assert ledger.add([trial("a", kind=kind, **new)]) == (Added(updated=1) if wins else Added(known=1))
    stored = ledger.get("a")
    assert stored is not None
    assert stored.outcome == trial("a", **(new if wins else old)).outcome
    assert ledger.rows(("status", "seconds")) == [(stored.outcome.status, stored.outcome.seconds)]
    assert ledger.count() == 1


def test_an_error_while_the_trials_are_made_adds_none(ledger: Ledger) -> None:
    def breaks() -> Any:
        yield trial("a")
        raise RuntimeError("the reader broke")

    with pytest.raises(RuntimeError):
        ledger.add(breaks())
    assert ledger.count() == 0


def test_what_could_not_be_read_stays_on_record(path: Path) -> None:
    unread = Unread("notes.md", 12, "| 48 | ??? |", "the time is not a number")
    with Ledger.open(path) as ledger:
        ledger.record_import("notes.md", Added(3, 1, 2), [unread])
    with Ledger.read(path) as ledger:
        (found,) = ledger.imports()
    assert (found.file, found.added, found.unread) == ("notes.md", Added(3, 1, 2), (unread,))


def test_text_that_is_not_unicode_gets_a_sentence(ledger: Ledger) -> None:
    name = "gr\udcf6sse.log"  # how Python holds a file name of Latin-1 bytes
    with pytest.raises(Mistake, match=r"not valid Unicode.*; nothing was added"):
        ledger.add([trial("a"), trial("b", file=name)])
    with pytest.raises(Mistake, match=r"not valid Unicode.*; the import was not recorded"):
        ledger.record_import(name, Added(), [])
    with pytest.raises(Mistake, match="not valid Unicode"):
        ledger.count([Condition("source_file", "=", name)])
    assert ledger.count() == 0


def test_a_damaged_record_of_an_import_gets_a_sentence(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.record_import("notes.md", Added(), [Unread("notes.md", 1, "?", "?")])
    path.write_bytes(path.read_bytes().replace(b'[{"file":', b'[+"file":'))
    with Ledger.read(path) as ledger, pytest.raises(Mistake, match="is damaged"):
        ledger.imports()


# --- questions


@pytest.fixture
def full(ledger: Ledger) -> Ledger:
    ledger.add(
        [
            trial("slow", tp=8, pp=2, seconds=9.0, size_label="104B"),
            trial("fast", tp=4, pp=2, seconds=3.0, size_label="104B"),
            trial("middle", tp=4, pp=2, seconds=5.0, size_label="13B"),
            trial("oom", tp=2, pp=1, status="oom"),
            trial("vague", seconds=7.0),
        ]
    )
    return ledger


def ids(trials: list[Trial]) -> list[str]:
    return [each.id for each in trials]


def test_trials_come_fastest_first_and_those_without_a_time_last(full: Ledger) -> None:
    assert ids(full.trials()) == ["fast", "middle", "vague", "slow", "oom"]
    assert ids(full.trials(descending=True)) == ["slow", "vague", "middle", "fast", "oom"]
    assert ids(full.trials(order="tp", descending=True, limit=2)) == ["slow", "fast"]
    assert ids(full.trials([Condition("pp", "<", 9)], order="seconds")) == ["fast", "middle", "slow", "oom"]


@pytest.mark.parametrize(
    ("column", "operator", "value", "found"),
    [
        ("tp", "=", 4, {"fast", "middle"}),
        ("tp", "=", "4", {"fast", "middle"}),
        ("tp", "!=", 4, {"slow", "oom", "vague"}),
        ("tp", "=", None, {"vague"}),
        ("tp", "!=", None, {"slow", "fast", "middle", "oom"}),
        ("tp", "<", 10**30, {"slow", "fast", "middle", "oom"}),
        ("seconds", "<=", 5, {"fast", "middle"}),
        ("seconds", ">", "5", {"slow", "vague"}),
        ("size_label", "=", "13B", {"middle"}),
        ("size_label", ">=", 13, {"middle"}),
        ("status", "!=", "ok", {"oom"}),
    ],
)
def test_a_condition_selects(full: Ledger, column: str, operator: str, value: Any, found: set[str]) -> None:
    where = [Condition(column, operator, value)]
    assert set(ids(full.trials(where))) == found
    assert {name for (name,) in full.rows(("id",), where)} == found
    assert full.count(where) == len(found)


def test_conditions_add_up(full: Ledger) -> None:
    assert ids(full.trials([Condition("tp", "=", 4), Condition("seconds", ">", 4)])) == ["middle"]


def test_groups_name_their_fastest_trial(full: Ledger) -> None:
    expected = [
        Group((2, 1), 1, None, None),
        Group((4, 2), 2, 3.0, "fast", 3.0),
        Group((8, 2), 1, 9.0, "slow", 9.0),
        Group((None, None), 1, 7.0, "vague", 7.0),
    ]
    assert full.groups(("tp", "pp")) == expected
    assert full.groups(("tp", "pp"), [Condition("status", "=", "ok")]) == expected[1:]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda ledger: ledger.trials(order="secnds"), "no column 'secnds'. Did you mean 'seconds'"),
        (lambda ledger: ledger.rows(("id; DROP TABLE trials",)), "no column"),
        (lambda ledger: ledger.rows(("document",)), "no column"),
        (lambda ledger: ledger.rows(()), "at least one column"),
        (lambda ledger: ledger.groups(("hiden",)), "Did you mean 'hidden'"),
        (lambda _: Condition("tpp", "=", 1), "Did you mean 'tp'"),
        (lambda _: Condition("tp", "LIKE", 1), "'LIKE' does not compare; use one of = != < <= > >="),
        (lambda _: Condition("tp", "<", None), "not < unknown"),
        (lambda _: Condition("tp", "=", "four"), "tp is a number, which 'four' is not"),
        (lambda _: Condition("seconds", "<", float("nan")), "seconds is a number"),
    ],
)
def test_a_question_that_makes_no_sense_gets_a_sentence(ledger: Ledger, ask: Any, says: str) -> None:
    with pytest.raises(Mistake, match=says.replace("?", r"\?")):
        ask(ledger)


def test_a_trial_that_is_not_there_is_none(ledger: Ledger) -> None:
    assert ledger.get("nothing") is None
    assert ledger.count() == 0
    assert ledger.groups(("tp",)) == []


# --- where the ledger is


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


def old_ledger(path: Path, trials: list[Trial]) -> None:
    """A ledger as the first schema left it."""
    raw = sqlite3.connect(path)
    raw.executescript(MIGRATIONS[0] + f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;")
    values = ", ".join("?" * (len(COLUMNS) + 1))
    raw.executemany(f"INSERT INTO trials VALUES ({values})", [(i, *row(each)) for i, each in enumerate(trials)])
    raw.executemany("INSERT INTO documents VALUES (?, ?)", [(i, each.to_json()) for i, each in enumerate(trials)])
    raw.commit()
    raw.close()


def test_an_older_ledger_is_brought_up_to_date_with_its_trials(path: Path) -> None:
    trials = [trial(str(number), seconds=1.0 + number, tp=2) for number in range(50)]
    old_ledger(path, trials)
    with Ledger.open(path) as ledger:
        assert ledger.trials() == trials
        assert ledger.imports() == []
        ledger.record_import("a", Added(), [])
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


def test_an_older_ledger_can_be_read_without_changing_it(path: Path) -> None:
    old_ledger(path, [trial("a")])
    before = contents(path.parent)
    with Ledger.read(path) as ledger:
        assert ids(ledger.trials()) == ["a"]
        assert ledger.imports() == []
    assert contents(path.parent) == before


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


def test_a_job_that_newer_rules_would_refuse_can_still_be_read(ledger: Ledger, path: Path) -> None:
    """What was measured stays measured: rules are asked when a Job is made, not when it is remembered."""
    refused = whole_job().model_copy(update={"layout": Layout(dp=3)})
    kept = trial("old").model_copy(update={"job": refused})
    ledger.add([kept])
    found = ledger.get("old")
    assert found is not None
    assert found.job == refused
    with pytest.raises(Mistake, match="dp 3"):
        Job.of(refused.model_dump())
