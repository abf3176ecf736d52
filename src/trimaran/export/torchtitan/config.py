"""torchtitan's TOML files: TitanConfig reads and checks keys and knows which were not read; `to_toml` writes."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

from trimaran.export.torchtitan.keys import CHOICES, DEFAULTS, IRRELEVANT, IRRELEVANT_AT, KINDS, RENAMED
from trimaran.spec import Mistake
from trimaran.spec.documents import parse_toml

SECTIONS = ("model", "optimizer", "training", "parallelism")


class TitanConfig:
    def __init__(self, stated: Mapping[str, Any], name: str) -> None:
        self.stated, self.name = dict(stated), name
        self._read: set[str] = set()
        self._reported: list[str] = []

    @classmethod
    def of(cls, text: str, name: str) -> Self:
        tables = parse_toml(text, name)
        if not any(isinstance(tables.get(section), dict) for section in SECTIONS):
            raise Mistake(
                f"{name} is TOML, but has none of torchtitan's sections {', '.join(SECTIONS)}, so it cannot be read."
            )
        return cls({RENAMED.get(key, key): value for key, value in _flatten(tables)}, name)

    def states(self, key: str) -> bool:
        return key in self.stated

    def get(self, key: str) -> Any:
        """The value in the file, or torchtitan's default."""
        self._read.add(key)
        if key not in self.stated:
            return DEFAULTS[key]
        value, default = self.stated[key], DEFAULTS.get(key)
        kinds = KINDS.get(key) or ((float, int) if isinstance(default, float) else (type(default),))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Mistake(f"{self.name}: {key} is {value!r}, but torchtitan wants {_describe(kinds)} there.")
        if value not in CHOICES.get(key, (value,)):
            raise Mistake(f"{self.name}: {key} is {value!r}, but torchtitan knows only {', '.join(CHOICES[key])}.")
        return value

    def positive(self, key: str) -> int:
        """A count, at least 1."""
        number = int(self.get(key))
        if number < 1:
            raise Mistake(f"{self.name}: {key} is {number}, but must be at least 1.")
        return number

    def take(self, key: str) -> Any:
        """The value in the file, unchecked; for keys of our own module."""
        self._read.add(key)
        return self.stated.get(key)

    def report(self, key: str) -> None:
        """The value of this key cannot be expressed in a Job."""
        self._reported.append(key)

    @property
    def unread(self) -> tuple[str, ...]:
        """In the file's order: what was reported, and keys that neither torchtitan 0.2.2 nor a Job has."""
        return tuple(f"{key} = {value!r}" for key, value in self.stated.items() if self._is_unread(key, value))

    def _is_unread(self, key: str, value: Any) -> bool:
        if key in self._reported or key in self._read:
            return key in self._reported
        if key in IRRELEVANT_AT:
            return bool(value != IRRELEVANT_AT[key])
        return not any(fnmatchcase(key, pattern) for pattern in IRRELEVANT)


def _flatten(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _describe(kinds: tuple[type, ...]) -> str:
    names = {int: "an integer", bool: "true or false", str: "a string", list: "a list"}
    return "a number" if float in kinds else names[kinds[0]]


def to_toml(tables: Mapping[str, Mapping[str, Any]], comments: Mapping[str, str]) -> str:
    """Every table in order; `comments` by section, '' for the file. TOML has no null, so None is left out."""
    parts = [f"# {comments['']}\n"] if "" in comments else []
    for name, values in tables.items():
        lines = [*([f"# {comments[name]}"] if name in comments else []), f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON's escapes are TOML's, but JSON leaves the delete character as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)  # numbers, inf among them
