"""Random damage to bytes and texts: what disks, editors, copies and people do to files."""

import random
import re
from typing import Any

NUMBERS = (
    *("0", "-5", "1", "nan", "inf", "-inf", "1e400", "1e24", "1e-320", "9" * 30, "9" * 400, "9" * 5000, "2147483648"),
    *(
        "9223372036854775808",
        "0.5",
        "",
        "٣",
        "²",
        "1_000",
        "1,000",
        "0x10",
        "None",
        "True",
        "-0",
        "1e5",
        "+7",
        "[]",
        "{}",
    ),
)
PIECES = (
    "\r",
    "\r\n",
    "\n",
    "\t",
    "\0",
    "\x1a",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ud7ff",
    '"',
    "'",
    "`",
    "$(",
    "${",
    "|",
    "\\",
)
PIECES += (
    ",",
    "[" * 3000,
    "(" * 3000,
    "{" * 3000,
    '{"a":' * 3000,
    "<<EOF\n",
    "\x1b[31m",
    "𐀀",
    "--",
    "=",
    "#",
    "nan",
    "\u0000\n",
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def damaged_text(text: str, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        text = _TEXT_DAMAGES[rng.randrange(len(_TEXT_DAMAGES))](text, rng)
    content = text.encode("utf-8", errors="surrogatepass")
    return damaged_bytes(content, rng) if rng.random() < 0.15 else content


def _number(text: str, rng: random.Random) -> str:
    """One number replaced, or every occurrence of it."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    one, value = rng.choice(found), rng.choice(NUMBERS)
    if rng.random() < 0.2:
        return text.replace(one[0], value)
    return text[: one.start()] + value + text[one.end() :]


def _insert(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(PIECES) + text[at:]


def _lines(text: str, rng: random.Random) -> str:
    """Lines swapped, doubled or dropped."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines[i], lines[j] = lines[j], lines[i]
        case 1:
            lines.insert(i, lines[j])
        case _:
            del lines[i]
    return "".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    i, j = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return rng.choice((text[:j], text[i:], text[:i] + text[min(j, i + 40) :]))


_TEXT_DAMAGES = (_number, _number, _number, _insert, _insert, _lines, _cut)


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """As disks and copies damage files: in a few bytes, in pages, at the end, in all."""
    data = bytearray(content)
    page = 4096
    match rng.randrange(9):
        case 0:
            for _ in range(rng.choice((1, 3, 30, 300))):
                data[_place(data, rng)] = rng.randrange(256)
        case 1:
            data[_place(data, rng)] ^= 1 << rng.randrange(8)
        case 2:
            at = _place(data, rng)
            data[at : at + rng.choice((4, 100, 5000))] = rng.randbytes(rng.choice((4, 100, 5000)))
        case 3:
            at = _place(data, rng) // page * page
            data[at : at + page] = rng.choice((bytes(page), rng.randbytes(page), b"\xff" * page))
        case 4:
            del data[rng.choice((_place(data, rng), _place(data, rng) // page * page)) :]
        case 5:  # one page in the place of another
            a, b = _place(data, rng) // page * page, _place(data, rng) // page * page
            data[a : a + page] = data[b : b + page]
        case 6:
            data[rng.randrange(min(100, len(data)))] = rng.randrange(256)
        case 7:
            data[:] = rng.choice((b"", b"\0", bytes(len(data)), rng.randbytes(len(data) // 4)))
        case _:  # the same length, other bytes: also inside texts
            word = rng.choice((b'"', b":", b"{", b"tp", b"1", b"a100", b"seconds", b"null", b"0."))
            data = bytearray(bytes(data).replace(word, rng.randbytes(len(word)), rng.choice((1, 10, -1))))
    return bytes(data)


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(max(1, len(data))) if len(data) else 0


def hostile_cell(old: Any, rng: random.Random) -> Any:
    if isinstance(old, str) and len(old) > 20 and rng.random() < 0.8:
        text = damaged_text(old, rng)
        return text if rng.random() < 0.2 else text.decode("utf-8", errors="replace")
    return rng.choice((None, -5, 0, 2**63 - 1, 1e300, float("inf"), "text", "", b"\xff\xfe", "9" * 400, b"", 0.5, "\0"))
