"""Documents of text, JSON Lines and Parquet files, read in batches from any position."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, NonNegativeInt

from trimaran.data.streams import DAMAGED, Stream
from trimaran.spec import Mistake
from trimaran.spec.mistake import import_optional

TEXT, JSON_LINES, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".json", ".ndjson"), (".parquet",)
COMPRESSED = (".gz", ".zst")
BATCH_CHARACTERS, BATCH_DOCUMENTS = 2**20, 2048


@dataclass(frozen=True)
class InputPosition:
    """How far the inputs were read: complete inputs, and records and (uncompressed) bytes of the next one."""

    inputs: NonNegativeInt = 0
    records: NonNegativeInt = 0
    offset: Annotated[int, Field(ge=0, lt=2**63)] = 0


@dataclass
class TextBatch:
    """Texts, and where the next batch begins."""

    texts: list[str]
    position: InputPosition
    done: int  # bytes of all inputs on disk, compressed where they are
    characters: int = 0
    bad: int = 0


class InputRecord(NamedTuple):
    """One record: its text, or why it cannot be read; and the position after it."""

    text: str | None
    error: str
    records: int
    offset: int
    done: int


def list_inputs(given: Sequence[Path]) -> list[Path]:
    """Files in the order given; a folder stands for the files in it with a known suffix, sorted."""
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and reader_for(file))
            if not inside:
                raise Mistake(f"{path} is a folder without text, JSONL or Parquet files.")
            files += inside
        elif not path.is_file():
            raise Mistake(f"There is no file {path}.")
        elif not reader_for(path):
            raise Mistake(
                f"{path} has an unknown suffix; known are {', '.join(TEXT)} (one document),"
                f" {', '.join(JSON_LINES)} (one per line), each also with {' or '.join(COMPRESSED)}, and .parquet."
            )
        else:
            files.append(path)
    return files


def reader_for(path: Path) -> Callable[[Path, str, InputPosition], Iterator[InputRecord]] | None:
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    parquet = PARQUET if suffix == path.suffix else ()  # never compressed as a whole
    readers = ((TEXT, _read_text), (JSON_LINES, _read_json_lines), (parquet, _read_parquet))
    return next((reader for suffixes, reader in readers if suffix in suffixes), None)


def read_batches(inputs: Sequence[Path], field: str, start: InputPosition, skip_bad: bool) -> Iterator[TextBatch]:
    """A record that cannot be read raises a Mistake, or is counted with `skip_bad`."""
    sizes = [path.stat().st_size for path in inputs]
    before = sum(sizes[: start.inputs])
    batch = TextBatch([], start, before)
    for number in range(start.inputs, len(inputs)):
        path = inputs[number]
        reader = reader_for(path)
        assert reader is not None
        begin = start if number == start.inputs else InputPosition(number)
        try:
            for text, error, records, offset, done in reader(path, field, begin):
                if text is None and not skip_bad:
                    unit = "row" if path.suffix in PARQUET else "line"
                    raise Mistake(f"{path}, {unit} {records}: {error} (--skip-bad skips such records and counts them).")
                if text is None:
                    batch.bad += 1
                else:
                    batch.texts.append(text)
                    batch.characters += len(text)
                if batch.characters >= BATCH_CHARACTERS or len(batch.texts) + batch.bad >= BATCH_DOCUMENTS:
                    batch.position, batch.done = InputPosition(number, records, offset), before + done
                    yield batch
                    batch = TextBatch([], batch.position, batch.done)
        except DAMAGED:
            raise Mistake(f"{path} is damaged or truncated; decompressing it fails.") from None
        except OSError as failure:
            raise Mistake(f"{path} cannot be read: {failure.strerror or failure}.") from None
        before += sizes[number]
        batch = replace(batch, position=InputPosition(number + 1), done=before)
    yield batch


def _read_text(path: Path, field: str, start: InputPosition) -> Iterator[InputRecord]:
    if start.records:
        return
    with closing(Stream(path)) as stream:
        content = stream.lines.read()
    try:
        yield InputRecord(content.decode("utf-8-sig"), "", 1, 0, 0)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        yield InputRecord(None, "it is not UTF-8 text", line, 0, 0)


def _read_json_lines(path: Path, field: str, start: InputPosition) -> Iterator[InputRecord]:
    with closing(Stream(path)) as stream:
        stream.skip(start.offset)
        records, offset, done = start.records, start.offset, 0
        for line in stream.lines:
            records += 1
            offset += len(line)
            if records % 256 == 1:
                done = offset if stream.plain else stream.done()  # a system call
            if line.isspace():
                continue
            text, error = _parse_line(line if records > 1 else line.removeprefix(b"\xef\xbb\xbf"), field)
            yield InputRecord(text, error, records, offset, done)


def _parse_line(line: bytes, field: str) -> tuple[str | None, str]:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError:
        return None, "it is not UTF-8 text"
    except (ValueError, RecursionError) as error:
        return None, f"it is not valid JSON ({getattr(error, 'msg', 'nested too deeply')})"
    if not isinstance(values, dict):
        return None, f"it holds {'a list' if isinstance(values, list) else 'a bare value'}, not an object"
    if field not in values:
        known = ", ".join(map(str, list(values)[:6])) or "none"
        return None, f"it has no field {field!r}, only {known}; --field names another"
    text = values[field]
    if not isinstance(text, str):
        return None, f"its field {field!r} is not text but {str(text)[:40]}"
    if b"\\u" in line:
        try:
            text.encode()
        except UnicodeEncodeError:
            return None, "it has a lone surrogate, half of a character"
    return text, ""


def _read_parquet(path: Path, field: str, start: InputPosition) -> Iterator[InputRecord]:
    pyarrow = import_optional("pyarrow", f"Reading {path}", "data")
    parquet = import_optional("pyarrow.parquet", f"Reading {path}", "data")
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError):
        raise Mistake(f"{path} is not a Parquet file, or is truncated.") from None
    with file:
        names = file.schema_arrow.names
        if field not in names:
            raise Mistake(f"{path} has no column {field!r}, only {', '.join(names[:8])}; --field names another.")
        size, total = path.stat().st_size, max(file.metadata.num_rows, 1)
        records = 0
        groups: list[int] = []
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if not groups and records + count <= start.records:
                records += count  # already read
            else:
                groups.append(group)
        if not groups:
            return
        try:
            for rows in file.iter_batches(1024, row_groups=groups, columns=[field]):
                for value in _values(rows.column(0)):
                    records += 1
                    if records > start.records:
                        text = value if isinstance(value, str) else None
                        error = "" if text is not None else f"its column {field!r} is not text but {value}"
                        yield InputRecord(text, error, records, 0, size * records // total)
        except pyarrow.ArrowException:
            raise Mistake(f"{path} is damaged after row {records}.") from None


def _values(column: Any) -> list[Any]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(item) for item in column]


def _value(item: Any) -> Any:
    try:
        return item.as_py()
    except UnicodeDecodeError:
        return b"not UTF-8"
