"""Rows as text, as HTML for a notebook, and as a data frame."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from trimaran.spec import Layout
from trimaran.spec.mistake import import_optional

if TYPE_CHECKING:
    import pandas


def short_layout(layout: Layout) -> str:
    """dp x tp x pp, the micro batch, and what else differs from the default."""
    words = [f"dp {layout.dp} tp {layout.tp} pp {layout.pp} mbs {layout.micro_batch}"]
    words += [f"×{layout.virtual_stages}"] if layout.virtual_stages > 1 else []
    words += [layout.schedule] if layout.pp > 1 else []
    words += [f"ZeRO {layout.zero}"] if layout.zero else []
    words += [f"{layout.recompute} recompute"] if layout.recompute != "none" else []
    words += ["SP"] if layout.sequence_parallel else []
    return " ".join(words)


def short_number(value: float) -> str:
    """Three digits, or all of a large number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


class TitledTable(NamedTuple):
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int]  # columns aligned to the left
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Columns padded to their widest cell."""
        lines = [self.header, *self.rows] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = "  ".join(f"{{:{'<' if i in self.left else '>'}{width}}}" for i, width in enumerate(widths))
        return "\n".join([self.title, *(aligned.format(*line).rstrip() for line in lines), *self.notes])

    def html(self) -> str:
        """Names come from users' files, so every text is escaped."""

        def line(cells: Sequence[str], tag: str) -> str:
            sides = ["left" if i in self.left else "right" for i in range(len(cells))]
            styled = zip(sides, cells, strict=True)
            return "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for side, cell in styled)

        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self.rows)
        table = f"<table><thead><tr>{line(self.header, 'th')}</tr></thead><tbody>{body}</tbody></table>"
        below = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<div><p><b>{escape(self.title)}</b></p>{table if self.rows else ''}{below}</div>"


class ShownAsTables:
    """Shows itself as text in a terminal and as HTML in a notebook."""

    def tables(self) -> list[TitledTable]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(table.text() for table in self.tables())

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())


def data_frame(rows: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """A line a row; what is nested gets a column each, such as `shares.bubble`."""
    return import_optional("pandas", "frame()", "notebook").json_normalize(list(rows))
