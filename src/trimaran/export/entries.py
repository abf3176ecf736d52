"""The kinds of entries that a table of flags is made of, each read and written by the same few lines.

An entry is a flag with a value, a switch, a word among some, or a small class of its own where several flags make one
field (megatron_flags.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from trimaran.spec import Job, Mistake

Line = list[str]  # a flag and its words
Given = Mapping[str, Sequence[str]]  # flag -> its words, as a launch file has them
Fields = dict[str, Any]  # dotted path in a Job -> value


class Shell(str):
    """A word that the shell still has to read, such as "$DATA_PATH"; every other word is quoted."""

    __slots__ = ()


class Entry(Protocol):
    @property
    def flags(self) -> tuple[str, ...]: ...

    def write(self, job: Job) -> list[Line]: ...

    def read(self, given: Given) -> Fields: ...


def at(job: Job, path: str) -> Any:
    return reduce(getattr, path.split("."), job)


def always(job: Job) -> bool:
    return True


@dataclass(frozen=True)
class Value:
    """--num-layers 70. `default` is what the trainer takes where the flag is not given."""

    flag: str
    field: str
    kind: Callable[[str], Any]
    default: Any = None
    wanted: Callable[[Job], bool] = always

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)

    def write(self, job: Job) -> list[Line]:
        value = at(job, self.field)
        return [[self.flag, str(value)]] if value is not None and self.wanted(job) else []

    def read(self, given: Given) -> Fields:
        if self.flag in given:
            return {self.field: number(given, self.flag, self.kind)}
        return {} if self.default is None else {self.field: self.default}


@dataclass(frozen=True)
class Switch:
    """--embed-layernorm: the field has this value where the flag is, and `otherwise` where it is not."""

    flag: str
    field: str
    value: Any = True
    otherwise: Any = None
    others: tuple[str, ...] = ()  # written with it, and meaning nothing else
    wanted: Callable[[Job], bool] = always

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *self.others)

    def write(self, job: Job) -> list[Line]:
        on = at(job, self.field) == self.value and self.wanted(job)
        return [[flag] for flag in self.flags] if on else []

    def read(self, given: Given) -> Fields:
        if self.flag in given:
            return {self.field: self.value}
        return {} if self.otherwise is None else {self.field: self.otherwise}


@dataclass(frozen=True)
class Word:
    """--lr-decay-style cosine: a value of ours for each word of the trainer's; others are not understood."""

    flag: str
    field: str
    words: Mapping[str, str]  # ours -> theirs
    default: str | None = None  # theirs

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)

    def write(self, job: Job) -> list[Line]:
        value = at(job, self.field)
        return [[self.flag, self.words[value]]] if value in self.words else []

    def misses(self, given: Given) -> bool:
        """Whether it is given with a word that we have none for."""
        return bool(given.get(self.flag)) and given[self.flag][0] not in self.words.values()

    def read(self, given: Given) -> Fields:
        theirs = given[self.flag][0] if given.get(self.flag) else self.default
        ours = {word: value for value, word in self.words.items()}
        return {self.field: ours[theirs]} if theirs in ours else {}


@dataclass(frozen=True)
class Constant:
    """Flags that say what our Jobs always mean or what a runnable script needs; nothing is read from them."""

    lines: Callable[[Job], list[Line]]
    flags: tuple[str, ...]

    def write(self, job: Job) -> list[Line]:
        return self.lines(job)

    def read(self, given: Given) -> Fields:
        return {}


def number(given: Given, flag: str, kind: Callable[[str], Any]) -> Any:
    words = given[flag]
    try:
        return kind(words[0])
    except (ValueError, IndexError):
        said = f"is {words[0]!r}" if words else "has no value"
        raise Mistake(f"{flag} {said}, but must be a number.") from None


# Flags of logging, loading and libraries: understood, and nothing of a Job.
ELSEWHERE = frozenset(
    {
        "--abort-on-unmet-fused-kernel-constraints",
        "--ckpt-format",
        "--data-cache-path",
        "--data-impl",
        "--dataloader-type",
        "--distributed-backend",
        "--exit-duration-in-mins",
        "--exit-interval",
        "--exit-signal-handler",
        "--init-method-std",
        "--kill-switch-path",
        "--local_rank",
        "--max-position-embeddings",
        "--merge-file",
        "--no-load-optim",
        "--no-load-rng",
        "--no-masked-softmax-fusion",
        "--no-save-optim",
        "--no-save-rng",
        "--num-workers",
        "--override-lr-scheduler",
        "--override-opt_param-scheduler",
        "--timing-log-level",
        "--use-checkpoint-lr-scheduler",
        "--valid-num-workers",
        "--vocab-file",
    }
)
ELSEWHERE_BEGINS = ("--log-", "--tensorboard-", "--wandb-", "--no-log-", "--tokenizer-")


@dataclass(frozen=True)
class Table:
    """The entries of one trainer under the names of the blocks they stand in, and how its files are recognised."""

    blocks: Mapping[str, Sequence[Entry]]
    also_read: frozenset[str] = frozenset()  # flags that mean nothing more beside the others

    def entries(self) -> list[Entry]:
        return [entry for block in self.blocks.values() for entry in block]

    def lines(self, job: Job) -> dict[str, list[Line]]:
        return {name: [line for entry in block for line in entry.write(job)] for name, block in self.blocks.items()}

    def fields(self, given: Given) -> Fields:
        return {path: value for entry in self.entries() for path, value in entry.read(given).items()}

    def unread(self, given: Given) -> list[str]:
        missed = {entry.flag for entry in self.entries() if isinstance(entry, Word) and entry.misses(given)}
        known = ({flag for entry in self.entries() for flag in entry.flags} | self.also_read) - missed
        return [text(flag, words) for flag, words in given.items() if flag not in known and not elsewhere(flag)]

    def meaning_lost(self, unsure: Given) -> list[str]:
        """Flags with a place in a Job whose value is not known before the script runs, and those without any."""
        idle = {flag for entry in self.entries() if isinstance(entry, Constant) for flag in entry.flags}
        return [text(flag, words) for flag, words in unsure.items() if flag not in idle and not elsewhere(flag)]


def text(flag: str, words: Sequence[str]) -> str:
    return " ".join([flag, *words])


def elsewhere(flag: str) -> bool:
    return flag in ELSEWHERE or flag.startswith(ELSEWHERE_BEGINS)


def nested(fields: Fields) -> dict[str, Any]:
    """Dotted paths as a Job file has them; values that are unknown stay away."""
    values: dict[str, Any] = {}
    for path, value in fields.items():
        *outer, last = path.split(".")
        inside = reduce(lambda inner, name: inner.setdefault(name, {}), outer, values)
        inside[last] = value
    return values
