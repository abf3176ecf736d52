"""Which reader reads a file? Decided by its content, never by its name."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trimaran.ledger.logs import is_megatron, is_torchtitan, read_megatron, read_torchtitan
from trimaran.ledger.reading import Reading
from trimaran.ledger.tables.csv import is_csv, read_csv
from trimaran.ledger.tables.markdown import is_markdown, read_markdown
from trimaran.spec import Mistake

HEAD_BYTES = 400_000


def read_file(path: Path, progress: Callable[[int], object] = lambda count: None) -> Reading:
    """All measurements of a file, or a Mistake that says why it has none. `progress` is called with bytes read."""
    name = str(path)
    with _open_bytes(path, progress) as file:
        head_bytes = file.read(HEAD_BYTES)
        _check(head_bytes, name)
        head = head_bytes.decode("utf-8", errors="replace").lstrip("\ufeff")
        if is_csv(head):
            reading = read_csv(_text(head_bytes + file.read(), name), name)
        elif is_markdown(head):
            reading = read_markdown(_text(head_bytes + file.read(), name), name)
        elif is_megatron(head) or is_torchtitan(head):
            read = read_megatron if is_megatron(head) else read_torchtitan
            reading = read(_lines(head_bytes, file), name)
        else:
            raise Mistake(
                f"{name} is neither a log of Megatron-DeepSpeed, Megatron-LM or torchtitan, nor notes with a Markdown"
                " table, nor a CSV with known columns, nor a trainer's launch file; nothing in it can be imported."
            )
    if not reading.trials:
        why = f" {reading.unread[0].why[0].upper()}{reading.unread[0].why[1:]}" if reading.unread else ""
        line = f" (line {reading.unread[0].line})." if reading.unread else ""
        raise Mistake(f"{name} holds no measurement that can be imported.{why}{line}")
    return reading


class _ProgressFile(io.FileIO):
    """A file that reports how much of it has been read."""

    def __init__(self, path: Path, progress: Callable[[int], object]) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._progress(count)
        return count


@contextmanager
def _open_bytes(path: Path, progress: Callable[[int], object]) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed where they are gzip (again by content)."""
    if path.is_dir():
        raise Mistake(f"{path} is a directory; name the files in it, such as {path}/*.log.")
    try:
        with io.BufferedReader(_ProgressFile(path, progress), 1 << 20) as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            yield io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
    except FileNotFoundError:
        raise Mistake(f"There is no file {path}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Mistake(f"{path} is a damaged or truncated gzip file; nothing of it was imported.") from None
    except OSError as error:
        raise Mistake(f"{path} cannot be read: {error.strerror}.") from None


def _check(head: bytes, name: str) -> None:
    if not head.strip():
        raise Mistake(f"{name} is empty.")
    if head.startswith(b"SQLite format 3"):
        raise Mistake(f"{name} is a database, perhaps a ledger: read it with `trimaran results --ledger {name}`.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Mistake(f"{name} is UTF-16 text; convert it to UTF-8 first, for instance with iconv.")
    if b"\0" in head:
        raise Mistake(f"{name} is binary, not text.")


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Mistake(
            f"{name} is not UTF-8 text: see line {line}; convert it first, for instance with iconv."
        ) from None


def _lines(head: bytes, file: BinaryIO) -> Iterator[str]:
    """Lines of a log of any size; bytes that are not UTF-8 (a killed node's garbage) are replaced."""
    cut = head.rfind(b"\n") + 1
    yield from io.StringIO(head[:cut].decode("utf-8", errors="replace"))
    rest = head[cut:] + file.readline()
    if rest:
        yield rest.decode("utf-8", errors="replace")
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
        yield from text
