"""What launchers put before a line: rank labels, time stamps, colours."""

import re

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STAMP = re.compile(r"\[?(\d{4}-?\d\d-?\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d+))?\]?")
# torchrun --tee writes [default7]:, its --role rank and Python's excepthook [rank7]:, srun --label 7: (with a space).
_LABEL = re.compile(r"[\s>]*?((?:(?:\[(?:default|rank-?)\d+\]:|\d+:(?= )) ?)+)")


def without_colour(line: str) -> str:
    return COLOUR.sub("", line) if "\x1b" in line else line


def split_label(line: str) -> tuple[str, str]:
    """The rank's label ('' without one) and the rest, whose indentation is kept: a traceback is read by it."""
    found = _LABEL.match(line)
    return (found[1].strip(), line[found.end() :]) if found else ("", line)


def label_of(prefix: str) -> str:
    """Who printed, from the text before an iteration, without the time stamp."""
    return STAMP.sub("", prefix).strip()


def date_of(prefix: str) -> str:
    found = STAMP.search(prefix)
    return found[1] if found else ""
