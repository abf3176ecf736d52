"""The kinds of entries that a table of flags is made of; each both writes its flags and reads them.

An entry is a flag with a value, a switch, a choice among words, or a small class of its own where several flags make
one field (megatron_flags.py).
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

from trimaran.spec import Job, Mistake

Line = list[str]  # a flag and its words
Given = Mapping[str, Sequence[str]]  # flag -> its words, as in a launch file
Fields = dict[str, Any]  # dotted path in a Job -> value


class Unquoted(str):
    """A word that the shell still has to expand, such as "$DATA_PATH"; every other word is quoted."""

    __slots__ = ()


class Flags(Protocol):
    @property
    def flags(self) -> tuple[str, ...]: ...

    def write(self, job: Job) -> list[Line]: ...

    def read(self, given: Given) -> Fields: ...


def field_of(job: Job, path: str) -> Any:
    return reduce(getattr, path.split("."), job)


def default_of(path: str) -> Any:
    *outer, name = path.split(".")
    spec: Any = Job
    for noun in outer:
        spec = spec.model_fields[noun].annotation
    return spec.model_fields[name].get_default(call_default_factory=True)


def always(job: Job) -> bool:
    return True


@dataclass(frozen=True)
class SingleFlag:
    """A flag that is one field of the Job."""

    flag: str
    field: str

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)


@dataclass(frozen=True)
class ValueFlag(SingleFlag):
    """--num-layers 70. `default` is the trainer's own, where the flag is not given."""

    kind: Callable[[str], Any]
    default: Any = None
    wanted: Callable[[Job], bool] = always

    def write(self, job: Job) -> list[Line]:
        value = field_of(job, self.field)
        return [[self.flag, str(value)]] if value is not None and self.wanted(job) else []

    def read(self, given: Given) -> Fields:
        value = number(given, self.flag, self.kind, self.default)
        return {} if value is None else {self.field: value}


@dataclass(frozen=True)
class SwitchFlag(SingleFlag):
    """--embed-layernorm: the field has this value where the flag is given, and `otherwise` where it is not."""

    value: Any = True
    otherwise: Any = None
    others: tuple[str, ...] = ()  # written with it, without a meaning of their own
    wanted: Callable[[Job], bool] = always

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *self.others)

    def write(self, job: Job) -> list[Line]:
        on = field_of(job, self.field) == self.value and self.wanted(job)
        return [[flag] for flag in self.flags] if on else []

    def read(self, given: Given) -> Fields:
        value = self.value if self.flag in given else self.otherwise
        return {} if value is None else {self.field: value}


@dataclass(frozen=True)
class ChoiceFlag(SingleFlag):
    """--lr-decay-style cosine: the Job's value for each of the trainer's choices; other choices are not understood."""

    words: Mapping[str, str]  # ours -> theirs
    default: str | None = None  # theirs

    def write(self, job: Job) -> list[Line]:
        value = field_of(job, self.field)
        return [[self.flag, self.words[value]]] if value in self.words else []

    def is_unknown(self, given: Given) -> bool:
        """Whether it is given with a word that we have no value for."""
        return bool(given.get(self.flag)) and given[self.flag][0] not in self.words.values()

    def read(self, given: Given) -> Fields:
        theirs = given[self.flag][0] if given.get(self.flag) else self.default
        ours = {word: value for value, word in self.words.items()}
        return {self.field: ours[theirs]} if theirs in ours else {}


@dataclass(frozen=True)
class FixedFlags:
    """Flags that say what our Jobs always mean or what a runnable script needs; nothing is read from them."""

    lines: list[Line]
    wanted: Callable[[Job], bool] = always

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(line[0] for line in self.lines)

    def write(self, job: Job) -> list[Line]:
        return self.lines if self.wanted(job) else []

    def read(self, given: Given) -> Fields:
        return {}


def count(word: str) -> int | None:
    """A whole number as launchers take it, else None; it may be text that only a running shell knows."""
    return int(word) if re.fullmatch(r"[0-9]{1,15}", word) else None


def number(given: Given, flag: str, kind: Callable[[str], Any], default: Any = None) -> Any:
    """The flag's value, or the default where it is not given."""
    if flag not in given:
        return default
    words = given[flag]
    try:
        return kind(words[0])
    except (ValueError, OverflowError, IndexError):
        said = f"is {words[0][:80]!r}" if words else "has no value"
        raise Mistake(f"{flag} {said}, but must be a number.") from None


# Flags of logging, loading and libraries: understood, and irrelevant to a Job.
_IRRELEVANT = re.compile(
    r"--(?:log-|tensorboard-|wandb-|no-log-|tokenizer-).*"
    r"|--(?:abort-on-unmet-fused-kernel-constraints|ckpt-format|data-cache-path|data-impl|dataloader-type"
    r"|distributed-backend|exit-duration-in-mins|exit-interval|exit-signal-handler|init-method-std|kill-switch-path"
    r"|local_rank|max-position-embeddings|merge-file|no-load-optim|no-load-rng|no-masked-softmax-fusion|no-save-optim"
    r"|no-save-rng|num-workers|override-lr-scheduler|override-opt_param-scheduler|timing-log-level"
    r"|use-checkpoint-lr-scheduler|valid-num-workers|vocab-file)"
)


@dataclass(frozen=True)
class FlagTable:
    """The entries of one trainer, by the block of the launch script that they are written in."""

    blocks: Mapping[str, Sequence[Flags]]
    also_read: frozenset[str] = frozenset()  # flags that mean nothing more beside the others

    def entries(self) -> list[Flags]:
        return [entry for block in self.blocks.values() for entry in block]

    def lines(self, job: Job) -> dict[str, list[Line]]:
        return {name: [line for entry in block for line in entry.write(job)] for name, block in self.blocks.items()}

    def fields(self, given: Given) -> Fields:
        return {path: value for entry in self.entries() for path, value in entry.read(given).items()}

    def unread(self, given: Given) -> list[str]:
        unknown = {entry.flag for entry in self.entries() if isinstance(entry, ChoiceFlag) and entry.is_unknown(given)}
        known = ({flag for entry in self.entries() for flag in entry.flags} | self.also_read) - unknown
        return _relevant(given, known)

    def undetermined(self, unsure: Given) -> list[str]:
        """Of flags whose value only the running shell knows, those that would matter to a Job."""
        fixed = {flag for entry in self.entries() if isinstance(entry, FixedFlags) for flag in entry.flags}
        return _relevant(unsure, fixed)


def _relevant(given: Given, known: Set[str]) -> list[str]:
    return [
        " ".join([flag, *words])
        for flag, words in given.items()
        if flag not in known and not _IRRELEVANT.fullmatch(flag)
    ]


def nest(fields: Fields) -> dict[str, Any]:
    """Dotted paths as the nested values of a job file."""
    values: dict[str, Any] = {}
    for path, value in fields.items():
        *outer, last = path.split(".")
        inside = reduce(lambda inner, name: inner.setdefault(name, {}), outer, values)
        inside[last] = value
    return values
