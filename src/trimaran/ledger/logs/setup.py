"""The Setup of a log, which may be garbled: what a Setup refuses stays unknown."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trimaran.spec import Setup


def usable_setup(values: Mapping[str, Any]) -> Setup:
    try:
        return Setup(**values)
    except ValidationError as error:
        refused = {each["loc"][0] for each in error.errors()}
        return Setup(**{name: value for name, value in values.items() if name not in refused})
