"""PREFIX.json: what a data set was made of and how. Sets made by Megatron's own tools have none."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.spec import Mistake


@dataclass(frozen=True)
class Request:
    """What was asked for. Whatever differs here gives other tokens."""

    tokenizer: dict[str, str]
    field: str
    append_eod: bool
    inputs: list[dict[str, str | int]]  # file, bytes, modified_ns

    def difference(self, other: "Request") -> str:
        """In a few words, or '' when they are the same."""
        if self.tokenizer != other.tokenizer:
            return "another tokenizer"
        if self.field != other.field:
            return f"--field {other.field}"
        if self.append_eod != other.append_eod:
            return "--append-eod" if other.append_eod else "no --append-eod"
        changed = [str(old["file"]) for old in self.inputs if old not in other.inputs]
        return (f"other inputs ({changed[0]})" if changed else "more inputs") if self.inputs != other.inputs else ""


@dataclass(frozen=True)
class Record:
    trimaran: str  # the version that made it
    request: Request
    vocab: int
    eod: int | None
    dtype: str
    documents: int
    tokens: int
    characters: int  # of text
    empty: int  # documents without a token, left out
    bad: int  # records that could not be read, left out by --skip-bad


def record_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".json")


def read_record(prefix: Path) -> Record | None:
    path = record_path(prefix)
    if not path.is_file():
        return None
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return Record(**{**values, "request": Request(**values["request"])})
    except (ValueError, TypeError, KeyError):
        raise Mistake(f"{path} does not say how {prefix} was prepared; is it some other file?") from None
