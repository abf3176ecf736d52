"""PREFIX.json: from which inputs and how a dataset was prepared. Datasets made by Megatron's tools have none."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from trimaran.spec import Mistake


@dataclass(frozen=True)
class Request:
    """Everything that determines the tokens."""

    tokenizer: dict[str, str]
    field: str
    append_eod: bool
    inputs: list[dict[str, str | int]]  # file, bytes, modified_ns

    def difference(self, other: "Request") -> str:
        """What `other` asks for instead, in a few words; '' when they are the same."""
        if self.tokenizer != other.tokenizer:
            return "another tokenizer"
        if self.field != other.field:
            return f"--field {other.field}"
        if self.append_eod != other.append_eod:
            return "--append-eod" if other.append_eod else "no --append-eod"
        changed = [str(old["file"]) for old in self.inputs if old not in other.inputs]
        return (f"other inputs ({changed[0]})" if changed else "more inputs") if self.inputs != other.inputs else ""


@dataclass(frozen=True)
class Manifest:
    trimaran: str  # the version that wrote it
    request: Request
    vocab: int
    eod: int | None
    dtype: str
    documents: int
    tokens: int
    characters: int  # of text
    empty: int  # documents without a token, dropped
    bad: int  # records that could not be read, dropped by --skip-bad


def read_manifest(prefix: Path) -> Manifest | None:
    path = Path(f"{prefix}.json")
    if not path.is_file():
        return None
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except ValidationError:
        raise Mistake(f"{path} does not say how {prefix} was prepared; is it some other file?") from None
