"""The arguments that Megatron prints when it starts, `name ..... value`, as the flags they came from."""

import ast
import re

_LINE = re.compile(r"^(?:\[[^\]]*\]:)?\s*(\w+) \.{2,} (.*\S)\s*$", re.MULTILINE)
_ITERATION = re.compile(r"\biteration\s+\d+/\s*\d+ \|")
# Flags that say what is not, and values that are printed under another name.
_TURNED = {"--add-bias-linear": "--disable-bias-linear"}
_RENAMED = {"--fp8": "--fp8-format"}


def is_dump(text: str) -> bool:
    """A dump alone: a log that goes on with iterations is a measurement."""
    return len(_LINE.findall(text)) > 5 and not is_measured(text)


def is_measured(text: str) -> bool:
    return bool(_ITERATION.search(text))


def read_dump(text: str) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in _LINE.findall(text):
        flag = "--" + (name if name == "deepspeed_config" else name.replace("_", "-"))
        flag = _RENAMED.get(flag, flag)
        if flag in _TURNED:
            flag, value = _TURNED[flag], str(value == "False")
        if value == "True":
            given[flag] = []
        elif value not in ("None", "False", "[]"):
            given[flag] = _words(value)
    return given


def _words(value: str) -> list[str]:
    if value.startswith("["):
        try:
            return [str(item) for item in ast.literal_eval(value)]
        except (ValueError, SyntaxError):
            return [value]
    return [value.rpartition(".")[2] if re.fullmatch(r"[A-Z]\w+\.\w+", value) else value]  # an enumeration's member
