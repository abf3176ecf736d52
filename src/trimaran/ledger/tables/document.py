"""A Markdown document as headings, texts and tables. Notes are messy: tables may have two header lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"\s*(```|~~~)")
TABLE_LINE = re.compile(r"\s*\|.*\|\s*$")
DELIMITER = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*$")


@dataclass(frozen=True)
class Heading:
    line: int
    level: int
    title: str


@dataclass(frozen=True)
class Text:
    """A paragraph, a list or a fenced block."""

    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    line: int
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def elements(text: str) -> Iterator[Heading | Text | Table]:
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        start = i
        if FENCE.match(lines[i]):
            i += 1
            while i < len(lines) and not FENCE.match(lines[i]):
                i += 1
            yield Text(start + 2, tuple(lines[start + 1 : i]))
            i += 1
        elif match := HEADING.match(lines[i]):
            yield Heading(i + 1, len(match[1]), match[2])
            i += 1
        elif TABLE_LINE.match(lines[i]):
            while i < len(lines) and TABLE_LINE.match(lines[i]):
                i += 1
            yield _table(start + 1, lines[start:i])
        elif not lines[i].strip():
            i += 1
        else:
            while i < len(lines) and lines[i].strip() and not _starts_something(lines[i]):
                i += 1
            yield Text(start + 1, tuple(lines[start:i]))


def _starts_something(line: str) -> bool:
    return bool(FENCE.match(line) or HEADING.match(line) or TABLE_LINE.match(line))


def _table(line: int, lines: list[str]) -> Table | Text:
    delimiter = next((i for i, text in enumerate(lines) if DELIMITER.match(text)), None)
    if delimiter is None or delimiter == 0:
        return Text(line, tuple(lines))
    heads = [cells(text) for text in lines[:delimiter]]
    width = max(len(head) for head in heads)
    header = tuple(" ".join(head[i] for head in heads if i < len(head)).strip() for i in range(width))
    rows = [(line + i, cells(text)) for i, text in enumerate(lines) if i > delimiter]
    return Table(line, header, tuple(row for row in rows if any(row[1])))


def cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
