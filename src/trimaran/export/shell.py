"""A launch script's commands as lists of words: variables expanded, quotes removed, GPT_ARGS=" --a 1 " split.

Only what launch scripts use is supported: assignments, arrays, here-documents, `${NAME:-default}`. Nothing is executed,
so command substitutions and arithmetic stay as written, with their `$`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)\Z", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n(.*?)^[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?[-=?]([^}]*))?\})")
_SUBSTITUTION = re.compile(r"(?<!\\)(\$\(|`[^`]*`)")  # only a running shell knows its value
UNKNOWN = "\0"  # marks such a piece of a word, and a variable that the script does not set
_SBATCH = re.compile(r"^#SBATCH\s+(--[\w-]+)(?:[ =]\s*([^\s#]+))?", re.MULTILINE)


@dataclass(frozen=True)
class ShellScript:
    commands: list[list[str]]
    exported: dict[str, str] = field(default_factory=dict)  # variables that only the started processes use
    documents: list[str] = field(default_factory=list)  # here-documents
    sbatch: dict[str, str] = field(default_factory=dict)  # #SBATCH options


def read_script(text: str) -> ShellScript:
    sbatch = dict(_SBATCH.findall(text))
    known: dict[str, list[str]] = {}  # a variable's words; a plain one has one word
    if sbatch.get("--nodes", "").isdigit():
        known["SLURM_NNODES"] = known["SLURM_JOB_NUM_NODES"] = [sbatch["--nodes"]]
    bodies = [(quote, body) for quote, _, _, body in _HERE_DOCUMENT.findall(text)]
    commands, exported = list[list[str]](), list[str]()
    for raw_words in _statements(_HERE_DOCUMENT.sub(lambda found: found[3], text)):
        words = list(raw_words)
        exports = words[0] == "export"
        words = words[1:] if words[0] in ("export", "local", "readonly", "declare") else words
        while words and (found := _ASSIGNMENT.match(words[0])):
            name, more, value = found.groups()
            if value.startswith("("):
                given = [word for items in _statements(value[1:-1]) for raw in items for word in _expand(raw, known)]
            else:
                given = [" ".join(_expand(value, known, split=False))]
            known[name] = [*known.get(name, []), *given] if more else given
            words = words[1:]
            if exports:
                exported.append(name)
        if words and not exports:
            commands.append([word for raw in words for word in _expand(raw, known)])
    used = {name for found in _VARIABLE.finditer(text) for name in found.groups()[:2] if name}
    plain = {name: known[name][0] for name in exported if len(known[name]) == 1}
    return ShellScript(
        commands=commands,
        exported={name: value for name, value in plain.items() if name not in used and UNKNOWN not in value},
        documents=[body if quote else _substitute(body, known) for quote, body in bodies],
        sbatch=sbatch,
    )


def parse_flags(words: list[str]) -> dict[str, list[str]]:
    """Flags with the words that follow them, also of `--flag=value`; of a flag given twice the last counts."""
    given: dict[str, list[str]] = {}
    flag = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word) and " " not in word.partition("=")[0]:
            flag, equals, value = word.partition("=")
            given[flag] = [value] if equals else []
        elif flag is not None:
            given[flag].append(word)
    return given


def _statements(text: str) -> Iterator[list[str]]:
    """The words of each statement as written, with their quotes."""
    words, word, i, redirected = list[str](), "", 0, False
    while i <= len(text):
        c = text[i] if i < len(text) else "\n"
        if c == "\\" and text[i + 1 : i + 2] == "\n":
            i += 2
            continue
        if c == "\\":
            word, i = word + text[i : i + 2], i + 2
            continue
        if c == "#" and not word:
            i = _end(text, "\n", i)
            continue
        if c in "'\"`" or text.startswith("$(", i) or text.startswith("${", i) or (c == "(" and word.endswith("=")):
            end = _closing(text, i)
            word, i = word + text[i:end], end
            continue
        if c in "<>":  # 2>&1 or > file: neither a word nor the end of a statement
            words += [word] if word and not word.isdigit() and not redirected else []
            word, redirected = "", True
            while text[i : i + 1] in tuple("<>& \t"):
                i += 1
            continue
        if c in " \t\n;|&()":
            if word and not redirected:
                words.append(word)
            word, redirected = "", False
            if c in "\n;|&" and words:
                yield words
                words = []
            i += 1
            continue
        word, i = word + c, i + 1


def _end(text: str, what: str, start: int) -> int:
    place = text.find(what, start)
    return len(text) if place < 0 else place


def _closing(text: str, i: int) -> int:
    """The index after the quote, bracket or brace that closes the one at i."""
    c = text[i]
    if c in "'`":
        return _end(text, c, i + 1) + 1
    if c == "$":
        i += 1
        c = text[i]
    close = {'"': '"', "(": ")", "{": "}"}[c]
    i += 1
    while i < len(text) and text[i] != close:
        if text[i] == "\\":
            i += 2
        elif text[i] in "'\"`" and c != '"':
            i = _closing(text, i)
        elif text[i] == "#" and c == "(" and text[i - 1].isspace():
            i = _end(text, "\n", i)
        elif (text[i] == "(" and c == "(") or text.startswith(("$(", "${"), i):
            i = _closing(text, i)
        else:
            i += 1
    return i + 1


def _expand(raw: str, known: dict[str, list[str]], split: bool = True) -> list[str]:
    """The words that one word as written expands to. Unquoted variables are split, and so is a command line for another
    shell (`bash -c "… $CMD"`), recognised by the flags in it."""
    array = re.fullmatch(r"\"?\$\{(\w+)\[[@*]\]\}\"?", raw)
    if array and array[1] in known:
        return known[array[1]]
    made, i = "", 0
    bare = False
    while i < len(raw):
        c = raw[i]
        if c == "'":
            end = _closing(raw, i)
            made, i = made + raw[i + 1 : end - 1], end
        elif c == '"':
            end = _closing(raw, i)
            made, i = made + _unescape(_substitute(raw[i + 1 : end - 1], known)), end
        elif c == "\\":
            made, i = made + raw[i + 1 : i + 2], i + 2
        elif found := _VARIABLE.match(raw, i):
            made, i, bare = made + _substitute(found[0], known), found.end(), True
        elif raw.startswith("$(", i) or c == "`":
            end = _closing(raw, i)
            made, i = made + UNKNOWN + raw[i:end], end
        else:
            made, i = made + c, i + 1
    if split and (bare or re.search(r"\s--[a-z]", made)):
        return _split(made)
    return [made]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe in a value
        return text.split()


def _unescape(text: str) -> str:
    return re.sub(r"\\\n", "", re.sub(r"\\([$`\"\\])", r"\1", text))


def _substitute(text: str, known: dict[str, list[str]]) -> str:
    """Variables of the script substituted; others stay, or become their default where one is written."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in known:
            return " ".join(known[name])
        default = found[3]
        has_default = default is not None and re.match(r":?[-=]", found[0][len(name) + 2 :])
        return _unescape(default.strip("\"'")) if has_default and default is not None else UNKNOWN + found[0]

    return _SUBSTITUTION.sub(UNKNOWN + r"\1", re.sub(r"(?<!\\)" + _VARIABLE.pattern, value, text))
