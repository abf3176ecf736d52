"""Queries on the ledger's columns as SQL. Column names go into it as text, so only known ones are let through."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.ledger.schema import COLUMNS, LARGEST, TEXT_COLUMNS
from trimaran.spec import Mistake
from trimaran.spec.mistake import did_you_mean

Value = str | int | float | None

# IS and IS NOT: unknown equals unknown and differs from everything known, so = and != split the trials in two.
_OPERATORS = {"=": "IS", "!=": "IS NOT", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True)
class Filter:
    """One column compared with one value, such as tp <= 8. A value of None means unknown."""

    column: str
    operator: str
    value: Value

    def __post_init__(self) -> None:
        column_list((self.column,))
        if self.operator not in _OPERATORS:
            raise Mistake(f"{self.operator!r} does not compare; use one of {' '.join(_OPERATORS)}.")
        if self.value is None and self.operator not in ("=", "!="):
            raise Mistake(f"{self.column} can be = or != unknown, but not {self.operator} unknown.")
        self.operand()

    def operand(self) -> Value:
        """The value as SQLite must see it: text would be greater than every number instead of being refused."""
        if self.value is None:
            return None
        if self.column in TEXT_COLUMNS:
            return str(self.value)
        try:
            number = float(self.value)
        except (ValueError, OverflowError):
            number = float("nan")
        if number != number:
            raise Mistake(f"{self.column} is a number, which {self.value!r} is not.")
        return max(-LARGEST, min(self.value, LARGEST)) if isinstance(self.value, int) else number


def column_list(columns: Sequence[str]) -> str:
    """The columns as SQL. This check is also what prevents SQL injection."""
    for name in columns:
        if name not in COLUMNS:
            raise Mistake(f"The ledger has no column {name!r}.{did_you_mean(name, COLUMNS)}")
    if not columns:
        raise Mistake(f"Name at least one column of {', '.join(COLUMNS)}.")
    return ", ".join(columns)


def where_clause(where: Sequence[Filter]) -> str:
    """Only an equality may use an index: SQLite guesses that a range is narrow, and then reads a large part of the
    table in random order; the `+` makes it scan instead."""
    terms = [f"{'' if each.operator == '=' else '+'}{each.column} {_OPERATORS[each.operator]} ?" for each in where]
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def order_clause(order: str, descending: bool, limit: int | None, where: Sequence[Filter]) -> str:
    """Unknown last; ties by id, so that the same query has the same answer everywhere."""
    column = column_list((order,))
    if where:
        column = f"+{column}"  # without an index, of which SQLite would read every entry to its end
    direction = f"{column} DESC" if descending else f"{column} IS NULL, {column}"  # NULL is SQLite's smallest
    return f" ORDER BY {direction}, id LIMIT {-1 if limit is None else limit:d}"  # -1: all
