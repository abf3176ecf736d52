"""Packages that the core installation does without."""

from importlib import import_module
from typing import Any

from trimaran.spec import Mistake


def needed(module: str, what: str) -> Any:
    """The module, or a sentence: `what` needs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise Mistake(f"{what} needs {package}, which is not installed here: pip install 'trimaran[data]'.") from None
