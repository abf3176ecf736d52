"""A log may be garbled: what a Setup or an Outcome refuses stays unknown."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from trimaran.spec import Outcome, Setup

S = TypeVar("S", Setup, Outcome)


def usable(kind: type[S], values: Mapping[str, Any]) -> S:
    try:
        return kind(**values)
    except ValidationError as error:
        refused = {each["loc"][0] for each in error.errors()}
        return kind(**{name: value for name, value in values.items() if name not in refused})
