"""The ledger keeps trials exactly and answers questions about them."""

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trimaran
from tests.ledger.trials import ids, trial, whole_job
from trimaran.ledger.reading import Reading, Remark, Unread
from trimaran.ledger.schema import COLUMNS, TEXT_COLUMNS
from trimaran.ledger.store import Added, Filter, Group, Ledger
from trimaran.spec import Job, Layout, Mistake, Outcome, Setup, Source, Trial
from trimaran.spec.bounds import LEAST, MOST, MOST_LAYERS, MOST_STEPS

# --- what goes in comes out

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
amounts = st.floats(LEAST, MOST)
counts = st.one_of(st.integers(1, 200), st.integers(1, MOST_LAYERS))
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
        iterations=st.none() | st.integers(0, MOST_STEPS),
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


remark_strategy = st.builds(
    Remark,
    kind=st.sampled_from(("stated", "one-liner", "really")),
    file=words,
    line=counts,
    text=words,
    values=st.dictionaries(words, json_values, max_size=3),
    trials=st.lists(words, max_size=3).map(tuple),
)


@settings(max_examples=60)
@given(
    st.lists(trial_strategy, max_size=4, unique_by=lambda each: each.id),
    st.lists(remark_strategy, max_size=4, unique_by=lambda each: repr((each.kind, each.text))),
)
def test_trials_and_remarks_come_back_exactly(trials: list[Trial], remarks: list[Remark]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.sqlite")
        with Ledger.open(path) as ledger:
            given = Reading(tuple(trials), remarks=tuple(remarks))
            assert ledger.add_reading("notes", given) == Added(added=len(trials))
            assert ledger.add_reading("notes", given) == Added(known=len(trials))
        with Ledger.read(path) as ledger:
            reading = ledger.reading()
            assert sorted(reading.remarks, key=repr) == sorted(remarks, key=repr)
            assert {each.id for each in reading.trials} == {each.id for each in trials if each.corrects is None}
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


def test_a_known_trial_is_not_changed(ledger: Ledger) -> None:
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


def test_lines_that_could_not_be_read_are_recorded(path: Path) -> None:
    unread = Unread("notes.md", 12, "| 48 | ??? |", "the time is not a number")
    with Ledger.open(path) as ledger:
        ledger.add([trial("known")])
        ledger.add_reading("notes.md", Reading((trial("a"), trial("b"), trial("known")), (unread,)))
    with Ledger.read(path) as ledger:
        (found,) = ledger.imports()
    assert (found.file, found.added, found.unread) == ("notes.md", Added(added=2, known=1), (unread,))


def test_text_that_is_not_unicode_gets_a_sentence(ledger: Ledger) -> None:
    name = "gr\udcf6sse.log"  # how Python holds a file name of Latin-1 bytes
    with pytest.raises(Mistake, match=r"not valid Unicode.*; nothing was added"):
        ledger.add([trial("a"), trial("b", file=name)])
    with pytest.raises(Mistake, match=r"not valid Unicode.*; nothing was added"):
        ledger.add_reading(name, Reading((trial("a"),)))
    with pytest.raises(Mistake, match="not valid Unicode"):
        ledger.count([Filter("source_file", "=", name)])
    assert ledger.count() == 0


def test_a_damaged_record_of_an_import_gets_a_sentence(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.add_reading("notes.md", Reading(unread=(Unread("notes.md", 1, "?", "?"),)))
    path.write_bytes(path.read_bytes().replace(b'[{"file":', b'[+"file":'))
    with Ledger.read(path) as ledger, pytest.raises(Mistake, match="is damaged"):
        ledger.imports()


# --- queries


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


def test_trials_come_fastest_first_and_those_without_a_time_last(full: Ledger) -> None:
    assert ids(full.trials()) == ["fast", "middle", "vague", "slow", "oom"]
    assert ids(full.trials(descending=True)) == ["slow", "vague", "middle", "fast", "oom"]
    assert ids(full.trials(order="tp", descending=True, limit=2)) == ["slow", "fast"]
    assert ids(full.trials([Filter("pp", "<", 9)], order="seconds")) == ["fast", "middle", "slow", "oom"]


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
def test_a_filter_selects(full: Ledger, column: str, operator: str, value: Any, found: set[str]) -> None:
    where = [Filter(column, operator, value)]
    assert set(ids(full.trials(where))) == found
    assert {name for (name,) in full.rows(("id",), where)} == found
    assert full.count(where) == len(found)


def test_filters_are_combined_with_and(full: Ledger) -> None:
    assert ids(full.trials([Filter("tp", "=", 4), Filter("seconds", ">", 4)])) == ["middle"]


def test_groups_name_their_fastest_trial(full: Ledger) -> None:
    expected = [
        Group((2, 1), 1, None, None),
        Group((4, 2), 2, 3.0, "fast", 3.0),
        Group((8, 2), 1, 9.0, "slow", 9.0),
        Group((None, None), 1, 7.0, "vague", 7.0),
    ]
    assert full.groups(("tp", "pp")) == expected
    assert full.groups(("tp", "pp"), [Filter("status", "=", "ok")]) == expected[1:]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda ledger: ledger.trials(order="secnds"), "no column 'secnds'. Did you mean 'seconds'"),
        (lambda ledger: ledger.rows(("id; DROP TABLE trials",)), "no column"),
        (lambda ledger: ledger.rows(("document",)), "no column"),
        (lambda ledger: ledger.rows(()), "at least one column"),
        (lambda ledger: ledger.groups(("hiden",)), "Did you mean 'hidden'"),
        (lambda _: Filter("tpp", "=", 1), "Did you mean 'tp'"),
        (lambda _: Filter("tp", "LIKE", 1), "'LIKE' does not compare; use one of = != < <= > >="),
        (lambda _: Filter("tp", "<", None), "not < unknown"),
        (lambda _: Filter("tp", "=", "four"), "tp is a number, which 'four' is not"),
        (lambda _: Filter("seconds", "<", float("nan")), "seconds is a number"),
    ],
)
def test_a_bad_query_gets_a_sentence(ledger: Ledger, ask: Any, says: str) -> None:
    with pytest.raises(Mistake, match=says.replace("?", r"\?")):
        ask(ledger)


def test_a_missing_trial_is_none(ledger: Ledger) -> None:
    assert ledger.get("nothing") is None
    assert ledger.count() == 0
    assert ledger.groups(("tp",)) == []


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
