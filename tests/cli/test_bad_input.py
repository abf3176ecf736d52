"""The user's own mistakes get a sentence and exit code 2, and leave the ledger as it was."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = EXAMPLES / "notes" / "a100-topologies.md"
TABLE = "| Nodes | TP | Sec/it |\n| --: | --: | --: |\n"


def content(name: str) -> bytes:
    return {
        "empty.md": b"",
        "blank.log": b"\n\n",
        "binary.log": bytes(range(256)) * 10,
        "utf16.md": (TABLE + "| 1 | 2 | 3 |\n").encode("utf-16"),
        "latin1.md": ("# Mémoire\n" + TABLE + "| 1 | 2 | 3 |\n").encode("latin-1"),
        "prose.txt": b"Nothing was measured today.\n",
        "unknown.csv": b"nodes,devices,tp,sec_per_itt\n1,8,2,3.0\n",
        "noresult.csv": b"nodes,devices,tp\n1,8,2\n",
        "noresult.md": b"| Nodes | BS | MBS |\n| --: | --: | --: |\n| 16 | 32 | 1 |\n",
        "nan.csv": b"nodes,devices,tp,sec_per_it\n1,8,2,nan\n",
        "negative.csv": b"nodes,devices,tp,sec_per_it\n1,8,2,-3\n",
        "negative.md": (TABLE + "| 1 | 2 | -3 |\n").encode(),
        "zero.csv": b"nodes,devices,tp,sec_per_it\n1,8,0,3\n",
        "ragged.csv": b"nodes,devices,tp,sec_per_it\n1,8,2\n",
        "status.csv": b"nodes,devices,tp,status\n1,8,2,okay\n",
        "cut.log.gz": gzip.compress(GOOD.read_bytes())[:-200],
        "ledger.sqlite": b"SQLite format 3\0" + bytes(100),
    }[name]


IMPORTS = {
    "missing.log": ["no file missing.log"],
    "empty.md": ["empty.md is empty"],
    "blank.log": ["blank.log is empty"],
    "binary.log": ["binary.log is binary"],
    "utf16.md": ["UTF-16", "iconv"],
    "latin1.md": ["not UTF-8", "line 1"],
    "prose.txt": ["prose.txt is neither a log"],
    "unknown.csv": ["'sec_per_itt'", "'sec_per_it'"],
    "noresult.csv": ["no column of results", "sec_per_it"],
    "noresult.md": ["no column of results", "line 1"],
    "nan.csv": ["nan.csv:2", "sec_per_it", "nan"],
    "negative.csv": ["negative.csv:2", "sec_per_it", "-3"],
    "negative.md": ["negative.md:3", "seconds", "-3"],
    "zero.csv": ["zero.csv:2", "tp", "above zero"],
    "ragged.csv": ["ragged.csv:2", "3 values under 4"],
    "status.csv": ["status.csv:2", "'okay'", "'ok'"],
    "cut.log.gz": ["cut.log.gz", "damaged or truncated"],
    "ledger.sqlite": ["database", "trimaran results --ledger"],
    ".": ["directory"],
}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_file_that_cannot_be_imported_gets_a_sentence_and_changes_nothing(
    trimaran: Command, tmp_path: Path, name: str
) -> None:
    """Even the good file named beside it is not imported: all or nothing."""
    trimaran("import", EXAMPLES / "notes" / "fugaku-30b.md")
    before = (tmp_path / "trimaran.sqlite").read_bytes()
    if name not in ("missing.log", "."):
        (tmp_path / name).write_bytes(content(name))
    ran = trimaran("import", GOOD, name)
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1
    for words in IMPORTS[name]:
        assert words in ran.err
    assert (tmp_path / "trimaran.sqlite").read_bytes() == before


JOB = """
model: {preset: gpt-1b3, PLACE}
cluster: {preset: jean-zay-a100-80gb, nodes: 1}
layout: {dp: 8}
batch: {size: 64}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: bloom-175b\n", ["'bloom-175b'", "'bloom-176b'"]),
        (JOB.replace("PLACE", "layres: 3"), ["'model.layres'", "'layers'"]),
        (JOB.replace("PLACE", "layers: three"), ["model.layers", "'three'"]),
        (JOB.replace("PLACE", "heads: 12"), ["hidden 2048", "12 heads", "nearest"]),
        (JOB.replace("{preset: gpt-1b3, PLACE}", "gpt-1b3").replace("dp: 8", "dp: 3"), ["dp 3", "8", "layout.dp = 8"]),
        (JOB.replace("{preset: gpt-1b3, PLACE}", "gpt-1b3") + "wibble: 1\n", ["'wibble'"]),
        ("model: {preset: gpt-1b3\n", ["not valid YAML", "line 2"]),
        ("- a\n- b\n", ["not hold a mapping", "job.yaml"]),
    ],
)
def test_a_wrong_job_file_gets_a_sentence(trimaran: Command, tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "job.yaml").write_text(text)
    ran = trimaran("flops", "job.yaml", "--seconds", 1, "--gbs", 1, "--devices", 1)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("presets", "blom-176b"), ["'blom-176b'", "'bloom-176b'"]),
        (("flops", "bloom-176b"), ["--gbs"]),
        (("flops", "bloom-176b", "--gbs", 8, "--seconds", -1, "--devices", 8), ["-1", "more than zero"]),
        (("flops", "bloom-176b", "--gbs", 8, "--seconds", 1), ["--devices"]),
        (("flops", "bloom-176b", "--gbs", 8, "--on", "jean-zay"), ["'jean-zay'", "jean-zay-a100-80gb"]),
        (("flops",), ["job file or a model"]),
        (("flops", "job.yaml"), ["no file job.yaml"]),
        (("import",), ["at least one file"]),
        (("results",), ["no ledger trimaran.sqlite"]),
        (("audit", "--ledger", "nowhere.sqlite"), ["no ledger nowhere.sqlite"]),
    ],
)
def test_a_wrong_argument_gets_a_sentence(trimaran: Command, arguments: tuple[object, ...], words: list[str]) -> None:
    ran = trimaran(*arguments)
    assert (ran.code, ran.out) == (2, "")
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("results", "tpp=4"), ["'tpp'", "'tp'"]),
        (("results", "tp~4"), ["'tp~4'", "tp=4"]),
        (("results", "tp=four"), ["tp", "'four'"]),
        (("results", "--sort", "secondss"), ["'secondss'", "'seconds'"]),
        (("results", "--by", "tp,pq"), ["'pq'"]),
        (("results", "--compare", "zz"), ["no trial", "'zz'"]),
        (("results", "-o", "no/such/folder.md"), ["no/such/folder.md cannot be written"]),
    ],
)
def test_a_wrong_question_gets_a_sentence(trimaran: Command, arguments: tuple[object, ...], words: list[str]) -> None:
    trimaran("import", GOOD)
    ran = trimaran(*arguments)
    assert (ran.code, ran.out) == (2, "")
    for word in words:
        assert word in ran.err


def test_a_corrupt_ledger_is_left_alone(trimaran: Command, tmp_path: Path) -> None:
    trimaran("import", GOOD)
    path = tmp_path / "trimaran.sqlite"
    damaged = path.read_bytes()[:100] + os.urandom(3996) + path.read_bytes()[4096:]
    path.write_bytes(damaged)
    for command in (("import", GOOD), ("results",), ("audit", "--ledger")):
        ran = trimaran(*command)
        assert ran.code == 2
        assert "trimaran.sqlite" in ran.err
        assert path.read_bytes() == damaged


def test_a_reader_that_stops_early_is_no_error(trimaran: Command, tmp_path: Path) -> None:
    """`trimaran results | head -1` in a real pipe."""
    trimaran("import", "--published")
    command = f"{sys.executable} -m trimaran.cli.main results --json | head -c 10"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_ctrl_c_ends_an_import_with_a_sentence_and_writes_nothing(tmp_path: Path) -> None:
    """A real process that waits for its input (a pipe nobody writes to) and is interrupted."""
    os.mkfifo(tmp_path / "run.log")
    command = [sys.executable, "-m", "trimaran.cli.main", "import", "run.log"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    writer = os.open(tmp_path / "run.log", os.O_WRONLY)  # returns when the command has opened its end
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    os.close(writer)
    assert process.returncode == 130
    assert b"interrupted; nothing was written" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.log"]
