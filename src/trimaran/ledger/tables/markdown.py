"""Markdown notes: the rows of every table with results, completed by the prose around the table."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trimaran.ledger.logs import read_megatron
from trimaran.ledger.reading import Reading, Remark, Unread
from trimaran.ledger.tables import row as rows
from trimaran.ledger.tables.cells import date
from trimaran.ledger.tables.document import DELIMITER, Heading, Table, Text, elements
from trimaran.ledger.tables.statements import CAMPAIGN, OneLiner, Statement, heading, one_liner, statement
from trimaran.spec import Setup, Source, Trial

IN_PROSE = re.compile(r"^\s*[-*]\s.*(\d\s*secs?/it\b|\bnodes?:\s+\d+\s?GB)")
FROM_SHAPE = ("layers", "hidden", "ffn_hidden", "heads", "tp", "pp", "gbs", "mbs", "seq_len", "vocab", "size_label")
FROM_SECTION = ("gbs", "size_label", "recompute", "optimizer", "seq_len", "vocab")


@dataclass
class Section:
    """What is under one heading, in order."""

    level: int
    title: str
    parent: "Section | None"
    content: list[Statement | OneLiner | Table | Text] = field(default_factory=list)

    @property
    def path(self) -> list["Section"]:
        return [*(self.parent.path if self.parent else []), self]

    @property
    def name(self) -> str:
        return " / ".join(part.title for part in self.path if part.title)


def is_markdown(head: str) -> bool:
    return any(DELIMITER.match(line) for line in head.splitlines())


def read_markdown(text: str, file: str) -> Reading:
    reader = _Reader(file, _sections(text, file))
    for section in reader.sections:
        reader.read_section(section)
    return Reading(tuple(reader.trials), tuple(reader.unread), tuple(reader.remarks))


def _sections(text: str, file: str) -> list[Section]:
    """Split the document at its headings and parse what each text states. The file's name is a heading too."""
    root = Section(0, "", None, [heading(1, file.rpartition("/")[2])])
    found, now = [root], root
    for element in elements(text):
        if isinstance(element, Heading):
            parent = now
            while parent.level >= element.level and parent.parent:
                parent = parent.parent
            now = Section(element.level, element.title, parent, [heading(element.line, element.title)])
            found.append(now)
        elif isinstance(element, Table):
            now.content.append(element)
        else:
            now.content.append(element)
            now.content.append(statement(element.line, "\n".join(element.lines)))
            liners = (one_liner(element.line + i, line) for i, line in enumerate(element.lines))
            now.content.extend(liner for liner in liners if liner)
    return found


class _Reader:
    """Collects trials, lines that were not understood, and remarks, section by section."""

    def __init__(self, file: str, sections: list[Section]) -> None:
        self.file = file
        self.sections = sections
        self.trials: list[Trial] = []
        self.unread: list[Unread] = []
        self.remarks: list[Remark] = []
        self.seen: Counter[str] = Counter()

    def read_section(self, section: Section) -> None:
        before = len(self.trials)
        quoted = [trial for text in section.content if isinstance(text, Text) for trial in self._quoted(text, section)]
        for item in section.content:
            if isinstance(item, Table):
                quoted = self._table(section, item, quoted)
            elif isinstance(item, Text):
                self._prose(item)
        self.trials += quoted  # log lines that no table row repeats are trials of their own
        self._remarks(section, self.trials[before:])

    def _quoted(self, text: Text, section: Section) -> Iterator[Trial]:
        """Iteration lines of a trainer, quoted in a code block, with the shape stated before them."""
        if not any("elapsed time per iteration" in line for line in text.lines):
            return
        reading = read_megatron(text.lines, self.file)
        for unread in reading.unread:
            self._list_unread(unread.line + text.line - 1, unread.text, unread.why)
        for found in reading.trials:
            line = (found.source.line or 1) + text.line - 1
            known = {k: v for k, v in found.setup.model_dump().items() if v is not None}
            stated = self._stated(section, line, known)
            source = found.source.model_copy(update={"kind": "notes", "line": line, "section": section.name})
            setup = Setup.of(rows.complete({**stated, **known}, None), f"{self.file}:{line}")
            yield rows.trial(setup, found.outcome, source, self.seen)

    def _prose(self, text: Text) -> None:
        for i, line in enumerate(text.lines):
            if IN_PROSE.match(line):
                self._list_unread(text.line + i, line.strip(), "a measurement in a sentence, outside any table")

    def _table(self, section: Section, table: Table, quoted: list[Trial]) -> list[Trial]:
        names = rows.quantities(table.header)
        for header, name in zip(table.header, names, strict=True):
            if name is None:
                self._list_unread(table.line, header, "a column Trimaran does not know")
        if not rows.RESULTS & set(names):
            why = f"the table has no column of results (seconds, TFLOPs or memory), only {', '.join(table.header)}"
            self._list_unread(table.line, " | ".join(table.header), why)
            return quoted
        read = []
        for line, cells in table.rows:
            if len(cells) != len(names):
                why = f"the row has {len(cells)} cells under {len(names)} headers"
                self._list_unread(line, " | ".join(cells), why)
                continue
            row = {name: cell for name, cell in zip(names, cells, strict=True) if name}
            read.append((line, row, rows.setup_values(row, f"{self.file}:{line}")))
        usual = rows.usual_devices_per_node([values for _, _, values in read])
        for line, row, values in read:
            stated = self._stated(section, table.line, values)
            trial = self._trial(section, table, line, row, rows.complete({**stated, **values}, usual))
            quoted = self._add_row(trial, quoted)
            batch = stated.get("gbs")
            if batch and values.get("gbs") and batch != values["gbs"]:
                self._add_remark("stated", table.line, f"GBS={batch}", {"gbs": batch}, [trial.id])
        return quoted

    def _trial(self, section: Section, table: Table, line: int, row: dict[str, str], known: dict[str, Any]) -> Trial:
        result = rows.outcome(row, f"{self.file}:{line}")
        source = Source(
            kind="notes",
            file=self.file,
            line=line,
            section=section.name,
            table=f"{self.file}:{table.line}",
            date=date(row.get("notes", "")),
            note=row.get("notes", ""),
        )
        return rows.trial(Setup.of(known, f"{self.file}:{line}"), result, source, self.seen)

    def _add_row(self, trial: Trial, quoted: list[Trial]) -> list[Trial]:
        """A quoted log line with the row's TFLOPs is the same measurement: its seconds and batch complete the row."""
        tflops = trial.outcome.tflops
        twin = next((q for q in quoted if tflops is not None and q.outcome.tflops == tflops), None)
        if twin is not None and trial.outcome.seconds is None:
            note = f"seconds from the log line quoted at line {twin.source.line}"
            trial = trial.model_copy(
                update={
                    "setup": trial.setup.model_copy(update={"gbs": trial.setup.gbs or twin.setup.gbs}),
                    "outcome": trial.outcome.model_copy(
                        update={"seconds": twin.outcome.seconds, "iterations": twin.outcome.iterations}
                    ),
                    "source": trial.source.model_copy(update={"note": f"{trial.source.note}; {note}"}),
                }
            )
            quoted = [q for q in quoted if q is not twin]
        self.trials.append(trial)
        return quoted

    def _stated(self, section: Section, line: int, row: dict[str, Any]) -> dict[str, Any]:
        """What the text around a line states for a row, nearest first: section, shape, campaign, one-liner."""
        own = [s for s in section.content if isinstance(s, Statement) and s.line < line]
        titles = [part.content[0].values for part in section.path if isinstance(part.content[0], Statement)]
        sizes = [values["size_label"] for values in (*titles, *(s.values for s in own)) if "size_label" in values]
        shape = self._shape(section, line, row.get("size_label") or (sizes[-1] if sizes else None))
        near = [s for s in own if shape is None or s.line >= shape.line or shape not in own]
        campaign = self._campaign(section)
        after = [s for s in campaign if s.line >= line]
        values: dict[str, Any] = {"size_label": sizes[-1]} if sizes else {}
        before = [s for s in campaign if s.line < line]
        for stated in (*reversed(after), *before):  # the last before, else the first after
            values |= {key: stated.values[key] for key in CAMPAIGN & stated.values.keys()}
        for title in titles:
            values |= {key: title[key] for key in title.keys() & {"precision"}}
        if shape is not None:
            values |= {key: shape.values[key] for key in FROM_SHAPE if key in shape.values}
        for stated in near:
            values |= {key: stated.values[key] for key in FROM_SECTION if key in stated.values}
        for key, value in _one_liner_values(section, line).items():
            values.setdefault(key, value)
        return values

    def _shape(self, section: Section, line: int, size: str | None) -> Statement | None:
        """The nearest statement of a shape that is not of another size; else one of the same size anywhere before;
        else the campaign's only one, where that names no size."""
        for part in reversed(section.path):
            for item in reversed(part.content):
                if isinstance(item, Statement) and item.is_shape and item.line < line:
                    stated = item.values.get("size_label")
                    if size is None or stated is None or stated == size:
                        return item
        shapes = [s for part in self.sections for s in part.content if isinstance(s, Statement) and s.is_shape]
        same = [s for s in shapes if s.line < line and size and s.values.get("size_label") == size]
        if same:
            return same[-1]
        only = [s for s in self._campaign(section) if s.is_shape]
        return only[0] if len(only) == 1 and "size_label" not in only[0].values else None

    def _campaign(self, section: Section) -> list[Statement]:
        """Statements under the same top heading, and above the first one."""
        top = section.path[min(1, len(section.path) - 1)]
        parts = [part for part in self.sections if top in part.path or part is self.sections[0]]
        return [item for part in parts for item in part.content if isinstance(item, Statement)]

    def _remarks(self, section: Section, trials: list[Trial]) -> None:
        for item in section.content:
            if isinstance(item, Statement) and "really" in item.values:
                size = {"size_label": item.values["really"]}
                self._add_remark("really", item.line, item.text, size, [t.id for t in trials])
            elif isinstance(item, OneLiner):
                used = [
                    t.id
                    for t in trials
                    if t.outcome.seconds == item.values.get("seconds")
                    and t.setup.devices in (None, item.values.get("devices"))
                ]
                self._add_remark("one-liner", item.line, item.text, {**item.values, "tflops": item.result}, used)

    def _list_unread(self, line: int, text: str, why: str) -> None:
        self.unread.append(Unread(self.file, line, text, why))

    def _add_remark(self, kind: Any, line: int, text: str, values: dict[str, Any], trials: list[str]) -> None:
        self.remarks.append(Remark(kind, self.file, line, text, values, tuple(trials)))


def _one_liner_values(section: Section, line: int) -> dict[str, Any]:
    """Batch, sequence and factor of the one-liner right after a table, or of the section's last one."""
    found = [item for item in section.content if isinstance(item, OneLiner)]
    if not found:
        return {}
    used = next((item for item in found if item.line > line), found[-1])
    values: dict[str, Any] = {key: int(used.values[key]) for key in ("gbs", "seq_len") if used.values.get(key)}
    if used.values.get("factor"):
        values["recompute"] = "full" if used.values["factor"] == 4 else "none"
    if used.values.get("size_b"):
        values["size_label"] = f"{used.values['size_b']:g}B"
    return values
