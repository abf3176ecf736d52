"""Spec: the base class of Job and its parts: frozen, validated on construction, lossless in YAML and JSON."""

from collections.abc import Mapping
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trimaran.spec.documents import parse_yaml
from trimaran.spec.mistake import Mistake, shortened, validation_message


class LosslessDumper(yaml.SafeDumper):
    """Double quotes where a text has line breaks of Unicode: PyYAML writes them as they are otherwise, and reads a
    space or a new line back."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if any(c in text for c in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


LosslessDumper.add_representer(str, _represent_text)


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="null")

    @classmethod
    def of(cls, values: Mapping[str, Any], what: str | None = None) -> Self:
        """Validate plain values; a bad one raises a Mistake about `what`."""
        name = what or f"This {cls.__name__.lower()}"
        if not isinstance(values, Mapping):
            raise Mistake(f"{name} is {shortened(values)}, but must be a mapping of names to values.")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise Mistake(validation_message(error, name, _all_keys(cls))) from None

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain values, defaults included, so that a file of it is complete."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self).of({**self.model_dump(), **changes})

    def to_json(self) -> str:
        return self.model_dump_json()

    def to_yaml(self) -> str:
        return yaml.dump(self.to_dict(), Dumper=LosslessDumper, sort_keys=False, allow_unicode=True, width=100)

    @classmethod
    def from_json(cls, text: str, *, trusted: bool = False) -> Self:
        """`trusted`: it was valid when it was written, so rules added since must not refuse it."""
        return cls.model_validate_json(text, context={"trusted": trusted})

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        return cls.of(parse_yaml(text, f"This {cls.__name__.lower()}"))


def _all_keys(cls: type[BaseModel]) -> set[str]:
    """Every field name of a class and of the classes inside it, for suggestions."""
    keys: set[str] = set()
    for name, field in cls.model_fields.items():
        keys.add(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys |= _all_keys(field.annotation)
    return keys
