"""YAML, JSON and TOML text that somebody wrote: read within limits, so that a hostile or damaged file costs a sentence.

Values are those of JSON: null, booleans, numbers, text, lists and mappings. A date without quotes is text.
"""

import json
import tomllib
from typing import Any

import yaml

from trimaran.spec.mistake import Mistake, shortened

MOST_CHARACTERS = 2**20  # a Job file has 10 thousand; a sweep of 5,000 listed layouts has 500 thousand
MOST_DEPTH = 32  # lists and mappings inside each other; a sweep file has 6
MOST_VALUES = 200_000  # where an alias counts as all that it stands for: nine lines of them can mean a billion values
MOST_DIGITS = 40  # of a number; no field holds more than 20


class _RefusedYaml(yaml.MarkedYAMLError):
    """Its problem is a sentence about the document, without a subject."""


class BoundedLoader(yaml.SafeLoader):
    """SafeLoader for the values of JSON; a key that is given twice is an error."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = set[Any]()
        for key, _ in node.value:
            written = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else key
            if written in keys:
                raise _RefusedYaml(problem=_twice(key.value), problem_mark=key.start_mark)
            keys.add(written)
        return node

    def flatten_mapping(self, node: Any) -> None:
        """Of `<<: *other`, which copies all entries, and so grows as aliases do."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_VALUES:
            raise _RefusedYaml(problem=_TOO_MANY, problem_mark=node.start_mark)

    def construct_scalar(self, node: Any) -> Any:
        numeric = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if numeric and isinstance(node.value, str) and len(node.value) > MOST_DIGITS:
            raise _RefusedYaml(problem=_TOO_LONG, problem_mark=node.start_mark)
        return super().construct_scalar(node)


# SafeLoader's other tags are dates, sets and bytes, which no field holds.
_TAGS = [f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")]
BoundedLoader.yaml_constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*_TAGS, None)}
BoundedLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, what: str) -> Any:
    """`what` is the file or option, as a sentence about it begins."""
    _check_length(text, what)
    try:
        values = yaml.load(text, BoundedLoader)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark is not None else ""
        if isinstance(error, _RefusedYaml):
            raise Mistake(f"{what} {error.problem}{line}.") from None
        raise Mistake(f"{what} is not valid YAML{line}; a list is [1, 2], a mapping {{a: 1}}.") from None
    except (yaml.YAMLError, ValueError):  # a control character, or a number that Python cannot read, such as 0b_
        raise Mistake(f"{what} is not valid YAML; a list is [1, 2], a mapping {{a: 1}}.") from None
    except RecursionError:
        raise Mistake(f"{what} {_TOO_DEEP}.") from None
    return _checked(values, what)


def parse_json(text: str, what: str) -> Any:
    _check_length(text, what)
    try:
        values = json.loads(text, parse_int=_integer, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise Mistake(f"{what} is not valid JSON (line {error.lineno}).") from None
    except ValueError as error:  # of the two functions above
        raise Mistake(f"{what} {error}.") from None
    except RecursionError:
        raise Mistake(f"{what} {_TOO_DEEP}.") from None
    return _checked(values, what)


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Its dates stay dates, which torchtitan's keys refuse with their own sentence."""
    _check_length(text, what)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"{what} is not valid TOML: {error}.") from None
    except ValueError:  # a number of thousands of digits
        raise Mistake(f"{what} {_TOO_LONG}.") from None
    except RecursionError:
        raise Mistake(f"{what} {_TOO_DEEP}.") from None
    _checked(values, what)
    return values


def _check_length(text: str, what: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise Mistake(f"{what} has more than the {MOST_CHARACTERS:,} characters that are read; is it the right file?")


def _checked(values: Any, what: str) -> Any:
    """Walk as a reader would, aliases followed: what refers to itself has no end, and is too deep."""
    left, waiting = MOST_VALUES, [(values, 1)]
    while waiting:
        value, depth = waiting.pop()
        left -= 1
        if left < len(waiting):
            raise Mistake(f"{what} {_TOO_MANY}.")
        if isinstance(value, str) and not value.isascii():
            _check_writable(value, what)
        if isinstance(value, int) and value.bit_length() > 4 * MOST_DIGITS:  # as hexadecimal or sexagesimal digits
            raise Mistake(f"{what} {_TOO_LONG}.")
        if not isinstance(value, dict | list):
            continue
        if depth > MOST_DEPTH:
            raise Mistake(f"{what} {_TOO_DEEP}.")
        inner = value if isinstance(value, list) else [*value, *value.values()]
        waiting += [(each, depth + 1) for each in inner]
    return values


def _check_writable(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Mistake(f"{what} has half of a surrogate pair in {shortened(text)}, which is no character.") from None


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(_TOO_LONG)
    return int(digits)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(_twice(next(name for name in names if names.count(name) > 1)))
    return values


def _twice(key: Any) -> str:
    return f"has the key {shortened(str(key))} twice in one mapping, so one of its values would be lost"


_TOO_DEEP = f"is nested more than {MOST_DEPTH} levels deep, or refers to itself"
_TOO_MANY = f"stands for more than {MOST_VALUES:,} values, each alias counted with all that it names"
_TOO_LONG = f"has a number of more than {MOST_DIGITS} digits, which no field holds"
