"""Megatron's indexed datasets: all that its tools write is read, and a damaged file gets a sentence."""

from pathlib import Path

import pytest

from tests.data.files import CODES, index, write_set
from trimaran.data.indexed_dataset import open_dataset
from trimaran.spec import Mistake


@pytest.mark.parametrize("code", CODES)
def test_every_kind_of_token_is_read(tmp_path: Path, code: int) -> None:
    largest = {1: 255, 2: 127, 3: 32767, 4: 2**31 - 1, 5: 2**40, 8: 65535}[code]
    opened = open_dataset(write_set(tmp_path / "a.b", [[[1, 2, 3]], [[largest]], [[], [7, 8], [9]], [[]]], code))
    assert [opened.document(i).tolist() for i in range(opened.documents)] == [[1, 2, 3], [largest], [7, 8, 9], []]


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_set_is_named_by_its_prefix_or_one_of_its_files(tmp_path: Path, ending: str) -> None:
    write_set(tmp_path / "wiki", [[[1]]])
    assert open_dataset(f"{tmp_path}/wiki{ending}").documents == 1


@pytest.mark.parametrize("indices", [[], [0], [0, 1]])
def test_sequences_that_no_document_index_names_are_documents(tmp_path: Path, indices: list[int]) -> None:
    """Megatron's early merge tool left document indices out, and its training does not miss them."""
    (tmp_path / "a.bin").write_bytes(bytes([1, 2, 3]))
    (tmp_path / "a.idx").write_bytes(index(1, [1, 2], [0, 1], indices))
    opened = open_dataset(tmp_path / "a")
    assert [opened.document(i).tolist() for i in range(opened.documents)] == [[1], [2, 3]]


def test_an_empty_set_is_a_set(tmp_path: Path) -> None:
    assert open_dataset(write_set(tmp_path / "a", [])).documents == 0


GOOD = index(1, [1, 2], [0, 1], [0, 1, 2])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["a.idx", "MMIDIDX"]),
        (b"PK\x03\x04" + GOOD[4:], ["a.idx", "MMIDIDX"]),
        (GOOD[:20], ["a.idx", "truncated"]),
        (GOOD[:-1], ["a.idx", "truncated", "2 sequences"]),
        (GOOD + b"0", ["a.idx", "too long"]),
        (index(1, [1, 2], [0, 1], [0, 1, 2], version=2), ["a.idx", "version 2"]),
        (index(6, [1, 2], [0, 8], [0, 1, 2]), ["a.idx", "float64", "not tokens"]),
        (index(7, [1, 2], [0, 8], [0, 1, 2]), ["a.idx", "float32 or float64"]),
        (index(9, [1, 2], [0, 1], [0, 1, 2]), ["a.idx", "dtype code 9"]),
        (index(1, [1, 1], [0, 1], [0, 1, 2]), ["a.bin", "3 bytes", "counts 2 tokens"]),
        (index(8, [1, 2], [0, 2], [0, 1, 2]), ["a.bin", "3 bytes", "which is 6"]),
        (index(1, [4, -1], [0, 4], [0, 1, 2]), ["a.idx", "sequence 1 has -1 tokens"]),
        (index(1, [1, 2], [1, 0], [0, 1, 2]), ["a.idx", "sequence 0", "offset is 1"]),
        (index(1, [1, 2], [0, 2], [0, 1, 2]), ["a.idx", "sequence 1", "byte 1", "offset is 2"]),
        (index(1, [1, 2], [0, 1], [0, 2, 1]), ["a.idx", "document indices"]),
        (index(1, [1, 2], [0, 1], [1, 2]), ["a.idx", "document indices"]),
        (index(1, [1, 2], [0, 1], [0, 3]), ["a.idx", "document indices"]),
    ],
)
def test_a_damaged_index_gets_a_sentence(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "a.bin").write_bytes(bytes([1, 2, 3]))
    (tmp_path / "a.idx").write_bytes(content)
    with pytest.raises(Mistake) as caught:
        open_dataset(tmp_path / "a")
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_gets_a_sentence_and_the_nearest_name(tmp_path: Path) -> None:
    write_set(tmp_path / "wiki_text_document", [[[1]]])
    with pytest.raises(Mistake, match=r"no .*wiki\.idx.*data prepare.*Did you mean 'wiki_text_document'"):
        open_dataset(tmp_path / "wiki")
    (tmp_path / "wiki_text_document.bin").unlink()
    with pytest.raises(Mistake, match=r"no .*wiki_text_document\.bin"):
        open_dataset(tmp_path / "wiki_text_document")
