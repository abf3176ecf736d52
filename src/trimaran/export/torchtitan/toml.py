"""TOML text of tables, as torchtitan's own files look: a section a table, a comment above it."""

import json
from collections.abc import Mapping
from typing import Any

Tables = Mapping[str, Mapping[str, Any]]


def written(tables: Tables, comments: Mapping[str, str]) -> str:
    """Every table in order; `comments` by section, '' for the file. None is left out: TOML has no word for it."""
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
