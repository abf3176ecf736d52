"""trimaran data prepare: every kind of input, killed at any moment, and sentences for what cannot be read."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
import zstandard

from tests.cli.conftest import Command
from trimaran.data.indexed_dataset import open_dataset

TEXTS = ["Grüße aus Köln.\n", "short", "", "中文 and ascii \U0001f600", "x" * 5000, "tail"]
SPECIAL = "<|endoftext|>"
KILLS = 5


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def documents(prefix: Path) -> list[list[int]]:
    opened = open_dataset(prefix)
    return [opened.document(i).tolist() for i in range(opened.documents)]


def write(folder: Path, kind: str, texts: list[str]) -> list[Path]:
    path = folder / f"in.{kind}"
    if kind == "txt":
        paths = [folder / f"{i}.txt" for i in range(len(texts))]
        for each, text in zip(paths, texts, strict=True):
            each.write_bytes(text.encode())
        return paths
    if kind == "parquet":
        pyarrow.parquet.write_table(
            pyarrow.table({"n": range(len(texts)), "text": texts}), path, row_group_size=max(2, len(texts) // 7)
        )
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(jsonl(texts[:2])) + gzip.compress(jsonl(texts[2:])))
    elif kind == "jsonl.zst":
        path.write_bytes(b"".join(zstandard.compress(jsonl(part)) for part in (texts[:2], texts[2:])))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + jsonl(texts) + b"\n")
    return [path]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer, trained here; with truncation and padding, which must be switched off."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=[SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(prose(200), trainer)
    made.enable_truncation(4)
    made.enable_padding(length=64)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    made.save(str(path))
    return path


def prose(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randrange(1, 9))) for _ in range(500)]
    return [" ".join(chance.choices(words, k=chance.randrange(5, 400))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "jsonl.gz", "jsonl.zst", "parquet"])
def test_texts_come_back_from_every_kind_of_file(trimaran: Command, tmp_path: Path, kind: str) -> None:
    files = write(tmp_path, kind, TEXTS)
    ran = trimaran("data", "prepare", *files, "-o", "out/set", "--bytes", "--append-eod", "--json")
    assert ran.code == 0, ran.err
    assert documents(tmp_path / "out/set") == [[*text.encode(), 256] for text in TEXTS if text]
    record = json.loads((tmp_path / "out/set.json").read_text())
    assert (record["vocab"], record["eod"], record["dtype"]) == (257, 256, "uint16")
    assert (record["documents"], record["empty"], record["bad"]) == (5, 1, 0)
    assert record["tokens"] == sum(len(text.encode()) + 1 for text in TEXTS if text)
    assert json.loads(ran.out)["tokens"] == record["tokens"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["set.bin", "set.idx", "set.json"]


def test_a_tokenizers_tokens_are_its_own_for_each_document(trimaran: Command, tmp_path: Path, bpe: Path) -> None:
    (file,) = write(tmp_path, "jsonl", TEXTS)
    ran = trimaran("data", "prepare", file, "-o", "set", "--tokenizer", bpe, "--append-eod")
    assert ran.code == 0, ran.err
    alone = tokenizers.Tokenizer.from_file(str(bpe))
    alone.no_truncation()
    alone.no_padding()
    end = alone.token_to_id(SPECIAL)
    assert documents(tmp_path / "set") == [[*alone.encode(text).ids, end] for text in TEXTS if text]
    shown = json.loads(trimaran("data", "show", "set", "--json").out)
    assert (shown["documents"], shown["dtype"], shown["record"]["vocab"]) == (5, "uint16", alone.get_vocab_size())
    assert "Grüße aus Köln.\n".startswith(shown["first_text"].replace(SPECIAL, "")[:5])
    assert "Grüße" in trimaran("data", "show", "set").out


def test_a_large_vocabulary_is_stored_as_int32(trimaran: Command, tmp_path: Path) -> None:
    for size, dtype in ((65_499, np.uint16), (65_500, np.int32)):
        vocab = {f"w{i}": i for i in range(size)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w0"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save("words.json")
        (tmp_path / "a.txt").write_text(f"w1 w{size - 1}")
        ran = trimaran("data", "prepare", "a.txt", "-o", f"set{size}", "--tokenizer", "words.json")
        assert ran.code == 0, ran.err
        opened = open_dataset(tmp_path / f"set{size}")
        assert opened.tokens.dtype == dtype
        assert opened.tokens.tolist() == [1, size - 1]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "trimaran.cli.main", "data", "prepare", *map(str, arguments)]


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(tmp_path: Path, bpe: Path) -> None:
    """Killed with -9 some lines of progress after it resumed, again and again, then left to finish."""
    texts = prose(8000)
    files = write(tmp_path, "jsonl", texts[:2500]) + write(tmp_path, "jsonl.gz", texts[2500:4000])
    files += write(tmp_path, "jsonl.zst", texts[4000:5500]) + write(tmp_path, "parquet", texts[5500:7500])
    files += write(tmp_path, "txt", ["".join(texts[i : i + 50]) for i in range(7500, 8000, 50)])
    options = (*files, "--tokenizer", bpe, "--append-eod")
    subprocess.run(command(*options, "-o", tmp_path / "whole"), check=True, capture_output=True)
    chance, kills, reached = random.Random(1), 0, 0
    while True:
        again = command(*options, "-o", tmp_path / "cut", "--every", "0")
        process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        further, wait_for = 0, chance.randrange(1, 3)
        for line in process.stderr:
            done = int(line.split(" of ")[0].replace(",", ""))
            assert done >= reached  # nothing reported is done again
            further += done > reached
            if further == wait_for and kills < KILLS:
                reached = done
                process.kill()
                break
        process.stderr.close()
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        assert not (tmp_path / "cut.idx").exists()
    assert kills == KILLS
    for ending in (".bin", ".idx", ".json"):
        assert (tmp_path / f"cut{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, bpe: Path) -> None:
    (file,) = write(tmp_path, "jsonl", prose(8000))
    arguments = command(file, "-o", tmp_path / "set", "--tokenizer", bpe, "--every", "0")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(" 0 documents" not in line for line in process.stderr)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 5, err
    assert "the same command resumes" in err
    assert (tmp_path / "set.state.partial").exists()
    subprocess.run(arguments, check=True, capture_output=True)
    assert open_dataset(tmp_path / "set").documents == 8000


@pytest.mark.parametrize("step", range(6))
def test_killed_while_finishing_it_can_be_finished(tmp_path: Path, step: int) -> None:
    """Ended without warning before each change of a name in the folder: the index is never beside other tokens."""
    (file,) = write(tmp_path, "jsonl", TEXTS)
    code = (
        "import os, sys, pathlib\n"
        "left = [int(sys.argv.pop(1))]\n"
        "def dying(change):\n"
        "    def instead(*arguments, **words):\n"
        "        left[0] -= 1\n"
        "        return os._exit(9) if left[0] < 0 else change(*arguments, **words)\n"
        "    return instead\n"
        "pathlib.Path.replace, pathlib.Path.unlink = dying(pathlib.Path.replace), dying(pathlib.Path.unlink)\n"
        "from trimaran.cli.main import run\nrun()\n"
    )
    arguments = ["data", "prepare", str(file), "-o", str(tmp_path / "set"), "--bytes"]
    process = subprocess.run([sys.executable, "-c", code, str(2 + step), *arguments], capture_output=True)
    assert process.returncode == 9
    if (tmp_path / "set.idx").exists():
        assert open_dataset(tmp_path / "set").documents == 5
    subprocess.run([sys.executable, "-m", "trimaran.cli.main", *arguments], check=True, capture_output=True)
    assert documents(tmp_path / "set") == [list(text.encode()) for text in TEXTS if text]
    assert not list(tmp_path.glob("*.partial"))


def written(file: Path) -> tuple[int, int]:
    """Inode and time of the last change; reading changes neither."""
    return file.stat().st_ino, file.stat().st_mtime_ns


def test_a_second_run_finds_it_done_unless_something_differs(trimaran: Command, tmp_path: Path) -> None:
    (file,) = write(tmp_path, "jsonl", TEXTS)
    same = ("data", "prepare", file, "-o", "set", "--bytes")
    assert trimaran(*same).code == 0
    before = written(tmp_path / "set.bin")
    again = trimaran(*same)
    assert (again.code, "prepared before" in again.out) == (0, True)
    assert written(tmp_path / "set.bin") == before
    other = trimaran(*same, "--append-eod")
    assert (other.code, "--append-eod; --overwrite" in other.err) == (2, True)
    assert written(tmp_path / "set.bin") == before
    assert trimaran(*same, "--append-eod", "--overwrite").code == 0
    assert documents(tmp_path / "set")[1] == [*b"short", 256]
    file.write_bytes(jsonl([*TEXTS, "more"]))
    changed = trimaran(*same, "--append-eod")
    assert (changed.code, "other inputs" in changed.err) == (2, True)
    assert not list(tmp_path.glob("*.partial"))


BAD = {
    "json": (b'{"text": "a"}\n{"text": \n', ["in.jsonl, line 2", "not valid JSON", "--skip-bad"]),
    "field": (b'{"text": "a"}\n\n{"body": "b"}\n', ["line 3", "no field 'text', only body"]),
    "list": (b'{"text": "a"}\n["b"]\n', ["line 2", "a list, not an object"]),
    "number": (b'{"text": "a"}\n{"text": 5}\n', ["line 2", "not text but 5"]),
    "utf-8": (b'{"text": "a"}\n{"text": "\xff"}\n', ["line 2", "not UTF-8"]),
    "surrogate": (b'{"text": "a"}\n{"text": "\\ud800"}\n', ["line 2", "half of a character"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(trimaran: Command, tmp_path: Path, name: str) -> None:
    content, words = BAD[name]
    (tmp_path / "in.jsonl").write_bytes(content)
    ran = trimaran("data", "prepare", "in.jsonl", "-o", "set", "--bytes")
    assert ran.code == 2
    for word in words:
        assert word in ran.err
    assert not (tmp_path / "set.idx").exists()
    ran = trimaran("data", "prepare", "in.jsonl", "-o", "set", "--bytes", "--skip-bad")
    assert (ran.code, "1 unreadable" in ran.out) == (0, True)
    assert documents(tmp_path / "set") == [list(b"a")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.jsonl", "--bytes"], ["no file no.jsonl"]),
        (["a.pdf", "--bytes"], ["a.pdf has an unknown suffix", ".parquet"]),
        (["empty", "--bytes"], ["folder without"]),
        (["a.jsonl"], ["Neither --tokenizer nor --bytes"]),
        (["a.jsonl", "--bytes", "--tokenizer", "a.pdf"], ["Both"]),
        (["a.jsonl", "--tokenizer", "a.pdf"], ["a.pdf is not a tokenizer"]),
        (["a.jsonl", "--tokenizer", "no.json"], ["no.json cannot be read"]),
        (["a.parquet", "--bytes"], ["a.parquet is not a Parquet file"]),
        (["b.parquet", "--bytes"], ["no column 'text', only body", "--field"]),
        (["cut.jsonl.gz", "--bytes"], ["cut.jsonl.gz is damaged or truncated"]),
        (["cut.jsonl.zst", "--bytes"], ["cut.jsonl.zst is damaged or truncated"]),
        (["latin.txt", "--bytes"], ["latin.txt, line 2", "not UTF-8"]),
    ],
)
def test_what_cannot_be_prepared_gets_a_sentence(
    trimaran: Command,
    tmp_path: Path,
    arguments: list[str],
    words: list[str],
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a.pdf", "a.parquet"):
        (tmp_path / name).write_bytes(b"nothing")
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a"]))
    (tmp_path / "latin.txt").write_bytes(b"a\n\xff")
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"]}), tmp_path / "b.parquet")
    content = jsonl(prose(20))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(content)[:-20])
    (tmp_path / "cut.jsonl.zst").write_bytes(zstandard.compress(content)[:-20])
    ran = trimaran("data", "prepare", *arguments, "-o", "set")
    assert ran.code == 2, ran.out
    for word in words:
        assert word in ran.err
    assert not list(tmp_path.glob("set*"))


@pytest.mark.parametrize(("package", "kind"), [("zstandard", "jsonl.zst"), ("pyarrow", "parquet")])
def test_a_missing_package_gets_a_sentence(
    trimaran: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    kind: str,
) -> None:
    (file,) = write(tmp_path, kind, TEXTS)
    monkeypatch.setitem(sys.modules, package, None)
    ran = trimaran("data", "prepare", file, "-o", "set", "--bytes")
    assert ran.code == 2
    assert f"needs {package}, which is not installed here: pip install 'trimaran[data]'" in ran.err


def test_training_on_what_was_prepared_is_checked_before_any_process_starts(trimaran: Command, tmp_path: Path) -> None:
    ran = trimaran("train", "tiny", "--set", "data.source=nowhere")
    assert (ran.code, "There is no nowhere.idx" in ran.err) == (2, True)
    (file,) = write(tmp_path, "jsonl", prose(20))
    assert trimaran("data", "prepare", file, "-o", "set", "--bytes").code == 0
    ran = trimaran("train", "tiny", "--set", "data.source=set", "--set", "model.vocab=200")
    assert (ran.code, "model.vocab = 257" in ran.err) == (2, True)
