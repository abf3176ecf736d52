"""Parse a document into steps: commands with their output, and files that the reader writes or has.

Commands are those in fenced blocks of sh, bash or console, and table cells that are nothing but `trimaran …`. Marks are
HTML comments, which no reader sees, directly before a block or table; CONTRIBUTING.md lists them. README.md has none in
its source: `readme.py` holds its marks.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.readme import GIVEN_TO_READER, MARKS

SHELLS = ("sh", "bash", "console")
PROGRAMS = ("slurm", "chromium")  # not installed on every machine
_MARK = re.compile(r'<!-- (run|file|given)(?: "([^"]+)")?: (.+) -->')
_CELL = re.compile(r"`(trimaran [^`]+)`")
_STRAY = re.compile(r"(\$ |trimaran |srun |torchrun |python )")


class BadMark(Exception):
    """A mark that cannot be parsed, or a command in a block that no test runs."""


@dataclass(frozen=True)
class Command:
    """`shown` is the documented output, None where there is none. The other fields come from marks."""

    line: int
    text: str
    shown: str | None = None
    skipped: str = ""
    by: str = ""
    code: int = 0
    figures_differ: bool = False
    needs: str = ""
    run_as: str = ""

    @property
    def bare(self) -> str:
        """Without the trailing comment."""
        return self.text.partition(" #")[0].strip()


@dataclass(frozen=True)
class Written:
    """A file that the reader writes: its name and text."""

    name: str
    text: str


@dataclass(frozen=True)
class Given:
    """A file that a reader of this document has already; `given.py` makes one."""

    name: str


@dataclass(frozen=True)
class Mark:
    """It applies to commands that contain `part`; if that is empty, to the whole block."""

    line: int
    kind: str
    part: str
    what: str


DocumentStep = Command | Written | Given


def parse_document(document: Path) -> list[DocumentStep]:
    try:
        steps = list(_parse_lines(document.read_text().splitlines()))
        if document.name == "README.md":
            marks = [Mark(0, "run", part, what) for part, what in MARKS.items()]
            steps = [*map(Given, GIVEN_TO_READER), *_apply_marks(steps, marks)]
        return steps
    except BadMark as error:
        raise BadMark(f"{document.name}:{error}") from None


def _parse_lines(lines: list[str]) -> Iterator[DocumentStep]:
    marks: list[Mark] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if mark := _MARK.fullmatch(line.strip()):
            kind, part, what = mark.groups()
            if kind == "given":
                yield from (Given(name) for name in what.split(", "))
            else:
                marks.append(Mark(at + 1, kind, part or "", what))
        elif line.startswith("```"):
            end = lines.index("```", at + 1)
            yield from _parse_block(line[3:].strip(), lines[at + 1 : end], at + 2, marks)
            marks, at = [], end
        elif line.startswith("|"):
            end = next((i for i in range(at, len(lines)) if not lines[i].startswith("|")), len(lines))
            yield from _apply_marks(list(_parse_cells(lines[at:end], at + 1)), marks)
            marks, at = [], end - 1
        elif line.strip() and marks:
            raise BadMark(f"{marks[0].line}: a mark that no block or table follows")
        at += 1


def _parse_block(language: str, lines: list[str], first: int, marks: list[Mark]) -> Iterator[DocumentStep]:
    names = [mark.what for mark in marks if mark.kind == "file"]
    if names:
        yield Written(names[0], "\n".join([*lines, ""]))
    elif language in SHELLS:
        listed = _parse_console(lines, first) if language == "console" else _parse_script(lines, first)
        yield from _apply_marks(list(listed), marks)
    else:
        for line in lines:
            if _STRAY.match(line):
                raise BadMark(f"{first}: {line!r} is a command, but the block is neither sh, bash nor console")
        if marks:
            raise BadMark(f"{marks[0].line}: a mark of a block without commands")


def _parse_script(lines: list[str], first: int) -> Iterator[Command]:
    """A command on each line that is not a comment; a line that ends in \\ continues."""
    pending: list[str] = []
    for number, line in enumerate(lines, first):
        if line.strip() and not line.startswith("#"):
            pending.append(line)
            if not line.endswith("\\"):
                yield Command(number - len(pending) + 1, "\n".join(pending))
                pending = []


def _parse_console(lines: list[str], first: int) -> Iterator[Command]:
    """A command after each $, and below it its output."""
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        output = "\n".join(lines[last + 1 : end]).strip()
        yield Command(first + start, "\n".join(lines[start : last + 1])[2:], output or None)


def _parse_cells(rows: list[str], first: int) -> Iterator[Command]:
    for number, row in enumerate(rows, first):
        for cell in row.strip("|").split("|"):
            if command := _CELL.fullmatch(cell.strip()):
                yield Command(number, command[1])


def _apply_marks(steps: Sequence[DocumentStep], marks: list[Mark]) -> list[DocumentStep]:
    for mark in marks:
        named = [isinstance(step, Command) and mark.part in step.text for step in steps]
        if not any(named):
            raise BadMark(f"{mark.line}: no command for this mark: {mark.what}")
        steps = [_apply_mark(step, mark) if yes else step for step, yes in zip(steps, named, strict=True)]
    return list(steps)


def _apply_mark(command: DocumentStep, mark: Mark) -> Command:
    assert isinstance(command, Command)
    word, _, rest = mark.what.partition(" ")
    changed: dict[str, object]
    if word == "skip," and rest:
        changed = {"skipped": rest}
    elif word == "by" and rest:
        changed = {"by": rest}
    elif word == "exit" and rest.isdigit():
        changed = {"code": int(rest)}
    elif mark.what == "figures differ":
        changed = {"figures_differ": True}
    elif word in PROGRAMS and not rest:
        changed = {"needs": word}
    elif word == "as" and rest:
        changed = {"run_as": rest}
    elif word == "with" and rest and not re.search(r"[|>&]", command.bare):
        changed = {"run_as": f"{command.bare} {rest}"}
    else:
        raise BadMark(f"{mark.line}: {mark.what!r} is not a mark for {command.text!r}")
    return Command(**{**vars(command), **changed})
