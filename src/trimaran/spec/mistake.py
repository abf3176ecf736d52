"""Mistake: a user error as one sentence: what was given, why it cannot work, what would."""

import difflib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pydantic import ValidationError


class Mistake(ValueError):
    """Its message is printed without a traceback; the command exits with code 2."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for a misspelt or shortened name, or '' when no known name is close."""
    close = close_names(given, known)
    return f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def close_names(given: str, known: Iterable[str]) -> list[str]:
    """Up to three names that contain the given one, else the closest match, else none."""
    names = sorted(set(known))
    close = [name for name in names if len(given) > 2 and given.lower() in name.lower()][:3]
    return close or difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)


def validation_message(error: ValidationError, what: str, known_keys: Iterable[str] = ()) -> str:
    """The first error pydantic found, as a sentence about `what` (a file or a class)."""
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return f"{what} has an unknown key {shortened(where)}.{did_you_mean(key, known_keys)}"
    if first["type"] == "missing":
        return f"{what} lacks {where!r}, which has no default."
    if first["type"] == "value_error":  # our own sentence, raised inside a validator
        text = str(first["ctx"]["error"])
        return f"{what}: {text}"
    return f"{what}: {where or 'the value'} is {shortened(first['input'])}, but {_lower_first(first['msg'])}."


def shortened(value: Any, most: int = 80) -> str:
    """A value as an error message shows it: all of it would hide the sentence where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list inside itself
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= most else f"{text[: most - 20]}…{text[-10:]}"


def require_package(package: str, what: str, extra: str) -> None:
    """A Mistake where an optional package is not installed; `extra` is our extra that installs it."""
    if find_spec(package) is None:
        name = {"torch": "PyTorch", "tensorboard": "TensorBoard"}.get(package, package)
        raise Mistake(f"{what} needs {name}, which is not installed here: pip install 'trimaran[{extra}]'.")


def import_optional(module: str, what: str, extra: str) -> Any:
    require_package(module.partition(".")[0], what, extra)
    return import_module(module)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
