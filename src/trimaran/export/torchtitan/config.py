"""Config: the keys of a torchtitan TOML file, each read once and checked; what nobody asked for is known at the end."""

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

from trimaran.export.torchtitan.words import CHOICES, DEFAULTS, KINDS, MISSED_UNLESS, OF_NO_CONCERN, RENAMED
from trimaran.spec import Mistake

SECTIONS = ("model", "optimizer", "training", "parallelism")


class Config:
    def __init__(self, stated: Mapping[str, Any], name: str) -> None:
        self.stated, self.name = dict(stated), name
        self._asked: set[str] = set()
        self._missed: list[str] = []

    @classmethod
    def of(cls, text: str, name: str) -> Self:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Mistake(f"{name} is not valid TOML: {error}.") from None
        if not any(isinstance(tables.get(section), dict) for section in SECTIONS):
            raise Mistake(
                f"{name} is TOML, but has none of torchtitan's sections {', '.join(SECTIONS)}, so it describes no job."
            )
        return cls({RENAMED.get(key, key): value for key, value in _flat(tables)}, name)

    def states(self, key: str) -> bool:
        return key in self.stated

    def get(self, key: str) -> Any:
        """What the file says, or what torchtitan takes where it says nothing."""
        self._asked.add(key)
        if key not in self.stated:
            return DEFAULTS[key]
        value, default = self.stated[key], DEFAULTS.get(key)
        kinds = KINDS.get(key) or ((float, int) if isinstance(default, float) else (type(default),))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Mistake(f"{self.name}: {key} is {value!r}, but torchtitan wants {_called(kinds)} there.")
        if value not in CHOICES.get(key, (value,)):
            raise Mistake(f"{self.name}: {key} is {value!r}, but torchtitan knows only {', '.join(CHOICES[key])}.")
        return value

    def positive(self, key: str) -> int:
        """A number of something that there must be at least one of."""
        number = int(self.get(key))
        if number < 1:
            raise Mistake(f"{self.name}: {key} is {number}, but must be at least 1.")
        return number

    def take(self, key: str) -> Any:
        """What the file says, unchecked; for keys of our own module."""
        self._asked.add(key)
        return self.stated.get(key)

    def miss(self, key: str) -> None:
        """What the file says here has no word in a Job."""
        self._missed.append(key)

    @property
    def unread(self) -> tuple[str, ...]:
        """As in the file, in its order: what was missed, and what torchtitan 0.2.2 does not know or a Job does not."""
        return tuple(f"{key} = {value!r}" for key, value in self.stated.items() if self._is_unread(key, value))

    def _is_unread(self, key: str, value: Any) -> bool:
        if key in self._missed or key in self._asked:
            return key in self._missed
        if key in MISSED_UNLESS:
            return bool(value != MISSED_UNLESS[key])
        return not any(fnmatchcase(key, pattern) for pattern in OF_NO_CONCERN)


def _flat(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _called(kinds: tuple[type, ...]) -> str:
    names = {int: "a whole number", bool: "true or false", str: "a text", list: "a list"}
    return "a number" if float in kinds else names[kinds[0]]
