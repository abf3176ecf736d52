"""One cell of a table: a number with a unit, an outcome in words, or both."""

import math
import re

from trimaran.spec import Mistake
from trimaran.spec.trial import Status

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|[-+]?\binf\b", re.IGNORECASE)
OOM = re.compile(r"\bOOMs?\b|out of memory", re.IGNORECASE)
ALMOST = re.compile(r"(close to|borderline|near(ly)?|almost|no|risk of|before)\s+(OOM|out of memory)", re.IGNORECASE)
HANG = re.compile(r"\bhangs?\b|\bhung\b|deadlock", re.IGNORECASE)
MAY = re.compile(r"\b(may|might|sometimes|can|could)\b", re.IGNORECASE)
FAIL = re.compile(r"\bfail(s|ed|ure)?\b|\bcrash(es|ed)?\b", re.IGNORECASE)
WITH_UNIT = re.compile(r"\d\s*[GM]i?B\b")
DATE = re.compile(r"^\s*(\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?)\b")


def number(cell: str, where: str) -> float | None:
    """The first number of a cell; one that cannot be measured (NaN, infinite, negative) is a Mistake."""
    found = NUMBER.search(cell.replace("`", ""))
    if found is None:  # '', '-', 'x', 'n/a': nothing was measured
        return None
    value = float(found[0].replace(",", ""))
    if not math.isfinite(value) or value < 0:
        raise Mistake(f"{where} is {found[0]}, which cannot be measured; correct that cell and import again.")
    return value


def count(cell: str, where: str) -> int | None:
    value = number(cell, where)
    if value is None:
        return None
    if value != int(value) or value == 0:
        raise Mistake(f"{where} is {cell.strip()}, but it must be a whole number above zero.")
    return int(value)


def gibibytes(cell: str, where: str) -> float | None:
    """'67GB' and '16622.7 MiB' alike. Notes copy nvidia-smi, whose GB are GiB."""
    match = re.search(r"([-+]?[\d.,]+|nan)\s*(GiB|GB|MiB|MB|KiB|KB)\b", cell, re.IGNORECASE)
    value = number(match[0] if match else cell, where)
    if value is None or match is None:
        return value
    return value / {"G": 1, "M": 1024, "K": 1024**2}[match[2][0].upper()]


def status(cells: list[str]) -> tuple[Status, str]:
    """The outcome that a row states in words, and the words; 'too close to OOM' and 'may hang' still ran."""
    for cell in cells:
        text = cell.strip()
        if OOM.search(text) and not ALMOST.search(text):
            return "oom", text
        if HANG.search(text):
            return ("ok" if MAY.search(text) else "hang"), text
        if FAIL.search(text):
            return "fail", text
    return "ok", ""


def date(cell: str) -> str:
    match = DATE.match(cell)
    return match[1] if match else ""
