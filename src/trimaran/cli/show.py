"""Tables and JSON, the same in every command."""

import io
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
PIPE_WIDTH = 240  # of output to a file or pipe: wide enough that no cell wraps


def console() -> Console:
    shown = _plain_console()
    return shown if shown.is_terminal else _plain_console(width=PIPE_WIDTH)


def _plain_console(**options: Any) -> Console:
    """Without markup: `[/]` or `:fire:` in a name is printed as it is. Styles of our own are Text."""
    return Console(markup=False, emoji=False, **options)


TableRow = Sequence[str | Text]


def table(title: str, header: Sequence[str], rows: Sequence[TableRow], left: Sequence[int] = (0,)) -> Table:
    """Cells are right-aligned, but for the columns in `left`."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        made.add_column(name, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def print_table(title: str, header: Sequence[str], rows: Sequence[TableRow], left: Sequence[int] = (0,)) -> None:
    console().print(table(title, header, rows, left))


def table_text(title: str, header: Sequence[str], rows: Sequence[TableRow], left: Sequence[int] = (0,)) -> str:
    """The table as text, coloured only on a terminal."""
    shown = console()
    text = io.StringIO()
    written = _plain_console(file=text, width=shown.width, force_terminal=shown.is_terminal)
    written.print(table(title, header, rows, left))
    return text.getvalue()


def cell(value: float | None, form: str) -> str:
    """Empty where nothing is known."""
    return "" if value is None else format(value, form)


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def print_json(value: Any) -> None:
    print(json_text(value), end="")
