"""A document that is too large, too deep, self-referring or contradictory is refused with a sentence, not followed."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.hostile import LAUGHS, MERGES
from trimaran.spec import Mistake, Sweep
from trimaran.spec.documents import MOST_CHARACTERS, parse_json, parse_toml, parse_yaml
from trimaran.spec.files import load_job, load_model, load_sweep
from trimaran.spec.settings import apply_settings

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "200,000 values, each alias"),
        (MERGES, "200,000 values, each alias"),
        ("a: &a [*a]", "refers to itself"),
        ("a: &a {b: *a}", "refers to itself"),
        ("[" * 5000, "levels deep"),
        ("[" * 200 + "]" * 200, "levels deep"),
        ("{a: " * 3000, "levels deep"),
        ("layers: 1\nhidden: 2\nlayers: 3\n", r"'layers' twice .* \(line 3\)"),
        ("a: {b: 1, b: 1}", "'b' twice"),
        ("nodes: " + "9" * 400, r"more than 40 digits.* \(line 1\)"),
        ("nodes: 0x" + "f" * 5000, "more than 40 digits"),
        ("nodes: " + "59:" * 30 + "59", "more than 40 digits"),
        ('name: "\\ud800"', "surrogate"),
        ("a: !!binary aGk=", r"not valid YAML \(line 1\)"),
        ("a: !!python/object/apply:os.system [id]", "not valid YAML"),
        ("a: [1\nb: 2\n", r"not valid YAML \(line 2\)"),
        ("a: \0", "not valid YAML"),
        ("# " + "x" * MOST_CHARACTERS, "1,048,576 characters"),
    ],
)
def test_a_hostile_document_gets_a_sentence(text: str, words: str) -> None:
    with pytest.raises(Mistake, match=f"^job.yaml .*{words}"):
        parse_yaml(text, "job.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "levels deep"),
        ("[" * 200 + "]" * 200, "levels deep"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ("9" * 5000, "more than 40 digits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("{", r"not valid JSON \(line 1\)"),
    ],
)
def test_a_hostile_json_document_gets_a_sentence(text: str, words: str) -> None:
    with pytest.raises(Mistake, match=f"^job.json .*{words}"):
        parse_json(text, "job.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000, "levels deep"),
        ("a = " + "9" * 5000, "more than 40 digits"),
        ("a = 1\na = 2\n", "not valid TOML: .*line 2"),
    ],
)
def test_a_hostile_toml_document_gets_a_sentence(text: str, words: str) -> None:
    with pytest.raises(Mistake, match=f"^train.toml .*{words}"):
        parse_toml(text, "train.toml")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_other_documents_are_read_as_pyyaml_wrote_them(values: object) -> None:
    assert parse_yaml(yaml.safe_dump(values), "it") == values


def test_aliases_and_merges_of_a_usual_size_are_read() -> None:
    text = "usual: &usual {dp: 1, tp: 2}\nall: [*usual, *usual]\nwide: {<<: *usual, tp: 8}\n"
    usual = {"dp": 1, "tp": 2}
    assert parse_yaml(text, "it") == {"usual": usual, "all": [usual, usual], "wide": {"dp": 1, "tp": 8}}


def test_a_date_is_text() -> None:
    assert parse_yaml("[2024-11-18, 2024-13-40]", "it") == ["2024-11-18", "2024-13-40"]


def test_no_other_reader_of_yaml_is_in_the_source() -> None:
    loads = re.compile(r"\b(safe_load|load_all|full_load|unsafe_load|yaml\.load)\b|\btomllib\.loads?\b")
    found = [path.name for path in SOURCE.rglob("*.py") for _ in loads.findall(path.read_text())]
    assert sorted(found) == ["documents.py", "documents.py", "formats.py"]  # the last asks whether text is TOML at all


@pytest.mark.parametrize("text", [LAUGHS, "a: &a [*a]", "[" * 5000, "model: tiny\nmodel: tiny\n", "5", "a: 1\0"])
@pytest.mark.parametrize("load", [load_job, load_sweep, load_model], ids=["job", "sweep", "model"])
def test_every_file_is_read_within_the_limits(tmp_path: Path, load: object, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(Mistake, match=re.escape(str(path))):
        load(str(path))  # type: ignore[operator]
    with pytest.raises(Mistake):
        Sweep.from_yaml(text)


@pytest.mark.parametrize("value", ["[" * 5000, "&a [*a]", "9" * 400, "99999999999", "{a: 1, a: 2}", ".inf", ".nan"])
def test_a_hostile_setting_gets_a_short_sentence(value: str) -> None:
    with pytest.raises(Mistake) as caught:
        apply_settings(load_job("gpt-1b3-h200"), [f"layout.pp={value}"])
    assert "layout.pp" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(Mistake, match="/dev/zero has more than"):
        load_job("/dev/zero")


@pytest.mark.parametrize("base", ["5", "[1]", "null", "true"])
def test_the_base_of_a_sweep_is_a_job_or_its_name(tmp_path: Path, base: str) -> None:
    (tmp_path / "s.yaml").write_text(f"base: {base}\naxes: {{layout.tp: [1]}}\n")
    with pytest.raises(Mistake, match=r"base is .*, but must be a Job, or the name"):
        load_sweep(tmp_path / "s.yaml")
