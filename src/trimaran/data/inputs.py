"""Documents out of files: one in a text file, one in a line of JSON, one in a row of Parquet; from any place on."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from trimaran.data.optional import needed
from trimaran.data.streams import DAMAGED, Stream
from trimaran.spec import Mistake

TEXT, JSON_LINES, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".json", ".ndjson"), (".parquet",)
PACKED = (".gz", ".zst")
BATCH_CHARACTERS, BATCH_DOCUMENTS = 2**20, 2048


@dataclass(frozen=True)
class Place:
    """How far the inputs were read: whole inputs, and records and (unpacked) bytes of the next one."""

    inputs: int = 0
    records: int = 0
    offset: int = 0


@dataclass
class Batch:
    """Texts, and where the next batch begins."""

    texts: list[str]
    place: Place
    done: int  # bytes of all inputs, as they lie on the disk
    characters: int = 0
    bad: int = 0


class Found(NamedTuple):
    """A record: its text, or what is wrong with it."""

    text: str | None
    wrong: str
    records: int
    offset: int
    done: int


def found_inputs(given: Sequence[Path]) -> list[Path]:
    """Files in the order given; a folder stands for the files in it whose suffix is known, sorted."""
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file))
            if not inside:
                raise Mistake(f"{path} is a folder without text, JSONL or Parquet files.")
            files += inside
        elif not path.is_file():
            raise Mistake(f"There is no file {path}.")
        elif not kind_of(path):
            raise Mistake(
                f"{path} has a suffix that says nothing of how to read it; known are {', '.join(TEXT)} (one document),"
                f" {', '.join(JSON_LINES)} (one in a line), each also with {' or '.join(PACKED)}, and .parquet."
            )
        else:
            files.append(path)
    return files


def kind_of(path: Path) -> Callable[[Path, str, Place], Iterator[Found]] | None:
    suffix = Path(path.stem).suffix if path.suffix in PACKED else path.suffix
    readers = ((TEXT, _text), (JSON_LINES, _json_lines), (PARQUET if suffix == path.suffix else (), _parquet))
    return next((reader for suffixes, reader in readers if suffix in suffixes), None)


def batches(inputs: Sequence[Path], field: str, start: Place, skip_bad: bool) -> Iterator[Batch]:
    """A record that cannot be read ends it with a sentence, or is counted when it may be skipped."""
    sizes = [path.stat().st_size for path in inputs]
    before = sum(sizes[: start.inputs])
    batch = Batch([], start, before)
    for number in range(start.inputs, len(inputs)):
        path = inputs[number]
        reader = kind_of(path)
        assert reader is not None
        begin = start if number == start.inputs else Place(number)
        try:
            for text, wrong, records, offset, done in reader(path, field, begin):
                if text is None and not skip_bad:
                    unit = "row" if path.suffix in PARQUET else "line"
                    raise Mistake(
                        f"{path}, {unit} {records}: {wrong} (--skip-bad leaves such records out and counts them)."
                    )
                if text is None:
                    batch.bad += 1
                else:
                    batch.texts.append(text)
                    batch.characters += len(text)
                if batch.characters >= BATCH_CHARACTERS or len(batch.texts) + batch.bad >= BATCH_DOCUMENTS:
                    batch.place, batch.done = Place(number, records, offset), before + done
                    yield batch
                    batch = Batch([], batch.place, batch.done)
        except DAMAGED:
            raise Mistake(f"{path} is damaged or cut off; unpacking it fails.") from None
        except OSError as error:
            raise Mistake(f"{path} cannot be read: {error.strerror or error}.") from None
        before += sizes[number]
        batch = replace(batch, place=Place(number + 1), done=before)
    yield batch


def _text(path: Path, field: str, start: Place) -> Iterator[Found]:
    if start.records:
        return
    stream = Stream(path)
    try:
        content = stream.lines.read()
    finally:
        stream.close()
    try:
        text, wrong = content.decode("utf-8-sig"), ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        yield Found(None, "it is not UTF-8 text", line, 0, 0)
        return
    yield Found(text, wrong, 1, 0, 0)


def _json_lines(path: Path, field: str, start: Place) -> Iterator[Found]:
    stream = Stream(path)
    try:
        stream.skip(start.offset)
        records, offset, done, told = start.records, start.offset, stream.done, 0
        for line in stream.lines:
            records += 1
            offset += len(line)
            if records % 256 == 1:
                told = done() if not stream.plain else offset
            if line.isspace():
                continue
            text, wrong = _of_line(line if records > 1 else line.removeprefix(b"\xef\xbb\xbf"), field)
            yield Found(text, wrong, records, offset, told)
    finally:
        stream.close()


def _of_line(line: bytes, field: str) -> tuple[str | None, str]:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError:
        return None, "it is not UTF-8 text"
    except (ValueError, RecursionError) as error:
        return None, f"it is not valid JSON ({getattr(error, 'msg', 'nested too deeply')})"
    if not isinstance(values, dict):
        return None, f"it holds {'a list' if isinstance(values, list) else 'a bare value'}, not an object with fields"
    if field not in values:
        return (
            None,
            f"it has no field {field!r}, only {', '.join(map(str, list(values)[:6])) or 'none'}; --field names another",
        )
    text = values[field]
    if not isinstance(text, str):
        return None, f"its field {field!r} is no text but {str(text)[:40]}"
    if b"\\u" in line and not _whole(text):
        return None, "it has half of a character (a lone surrogate)"
    return text, ""


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parquet(path: Path, field: str, start: Place) -> Iterator[Found]:
    pyarrow, parquet = needed("pyarrow", f"Reading {path}"), needed("pyarrow.parquet", f"Reading {path}")
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError):
        raise Mistake(f"{path} is no Parquet file, or is cut off.") from None
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
                records += count  # done: need not be read again
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
                        wrong = "" if text is not None else f"its column {field!r} is no text but {value}"
                        yield Found(text, wrong, records, 0, size * records // total)
        except pyarrow.ArrowException:
            raise Mistake(f"{path} is damaged behind row {records}.") from None


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
