"""Hostile values and texts, and mutations of good ones. All randomness comes from the Random that is given."""

import json
import re
from random import Random
from typing import Any

import yaml

LARGEST = (2**14, 2**20, 2**22, 2**27, 10**7, 10**9, 10**15)  # that some field allows
INTEGERS = (0, 1, 2, 3, 7, -1, -5, 64, *LARGEST, 2**31, 2**53 + 1, 2**63, 2**64, 99999999999, 10**24)
NUMBERS = (
    *INTEGERS,
    10**400,
    0.5,
    1e-5,
    3.5,
    -0.0,
    1e12,
    1e18,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    -float("inf"),
)
TEXTS = (
    *("", " ", "x", "no", "null", "1e5", "0x1F", "1:30:00", "2024-13-40", "~", "=", "<<", "tiny", "here", "/dev/null"),
    *(
        "a" * 300,
        "é" * 200,
        "../../etc/passwd",
        "a\nb: 1",
        "a\0b",
        "a\rb",
        "`id`",
        "$(id)",
        "[bold]x[/]",
        "{x}",
        "%s%n",
    ),
    *("'", '"', "\\", "-x", "#", "|", "\u202e", "\ud800", "NaN", "😀", "9" * 400, "a/b", "job.yaml", "."),
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *TEXTS,
    None,
    True,
    False,
    [],
    {},
    [1, 2],
    [[[[1]]]],
    {"a": 1},
    [0] * 1000,
    {"x": []},
)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SNIPPETS = (
    *("[" * 5000, "{a: " * 3000, "&a [*a]", "&b {b: *b}", "&c {<<: *c}", LAUGHS, MERGES, "!!python/object:os.system x"),
    *(
        "!!binary aaaa",
        "!!set {a, b}",
        "? [1]\n: 2\n",
        "--- \n...\n---",
        "\t",
        "\0",
        "\r",
        "\ufeff",
        "%YAML 9.9\n---\n",
    ),
    *("layers: 1\nlayers: 2\n", "((", "${", "<<EOF\n", "|" * 300, ",,,,", '"', "'", "1" + "0" * 5000, "=" * 50, "--"),
)


def value(random: Random) -> Any:
    return random.choice(VALUES)


def option(random: Random) -> str:
    """As on a command line, where a NUL and half a surrogate pair cannot be."""
    given = random.choice(INTEGERS) if random.random() < 0.4 else value(random)
    text = given if isinstance(given, str) else json.dumps(given) if isinstance(given, list | dict) else str(given)
    return text.replace("\0", "").replace("\ud800", "\udcff")


def document(random: Random, values: Any) -> str:
    """YAML or JSON of these values after some changes, and sometimes a mutation of its text."""
    changed = json.loads(json.dumps(values))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        change(random, changed)
    if random.random() < 0.3:
        text = json.dumps(changed)
    else:
        text = yaml.safe_dump(changed, sort_keys=False, allow_unicode=random.random() < 0.5)
    return mutated(random, text) if random.random() < 0.4 else text


def change(random: Random, values: Any) -> None:
    """One value anywhere inside is replaced, removed, or given a strange neighbour."""
    places: list[tuple[Any, Any]] = []
    waiting = [values]
    while waiting:
        inside = waiting.pop()
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        places += [(inside, key) for key in keys]
        waiting += [inside[key] for key in keys if isinstance(inside[key], dict | list)]
    if not places:
        return
    inside, key = random.choice(places)
    action = random.random()
    if action < 0.75:
        number = isinstance(inside[key], int | float) and random.random() < 0.6
        inside[key] = random.choice(NUMBERS) if number else value(random)
    elif action < 0.9 or isinstance(inside, list):
        del inside[key]
    else:
        inside[str(value(random))] = value(random)


def mutated(random: Random, text: str) -> str:
    for _ in range(random.choice((1, 1, 2, 4))):
        text = random.choice(MUTATIONS)(random, text)
    return text


def _other_number(random: Random, text: str) -> str:
    found = list(re.finditer(r"\d+(\.\d+)?", text))
    if not found:
        return text
    place = random.choice(found)
    return text[: place.start()] + str(random.choice(NUMBERS)) + text[place.end() :]


def _other_character(random: Random, text: str) -> str:
    place = random.randrange(len(text) + 1)
    return text[:place] + random.choice("\r\0\n\t ,|'\"$`{}[]()<>:#-=\\é\ufffe𝟘²") + text[place + random.randrange(2) :]


def _cut(random: Random, text: str) -> str:
    return text[: random.randrange(len(text) + 1)]


def _snippet(random: Random, text: str) -> str:
    place = random.choice((0, len(text), random.randrange(len(text) + 1)))
    return text[:place] + random.choice(SNIPPETS) + text[place:]


def _word(random: Random, text: str) -> str:
    words = list(re.finditer(r"\S+", text))
    if not words:
        return text
    place = random.choice(words)
    return text[: place.start()] + str(value(random)) + text[place.end() :]


def _lines(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    if random.random() < 0.5:
        lines[i], lines[j] = lines[j], lines[i]
    elif random.random() < 0.5:
        del lines[i]
    else:
        lines.insert(j, lines[i])
    return "".join(lines)


MUTATIONS = (_other_number, _other_number, _word, _word, _other_character, _cut, _snippet, _lines)
