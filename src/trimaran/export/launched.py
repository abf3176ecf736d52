"""Launched: what a launch script or an argument dump would start, as flags; the tables of flags make a Job of it."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from trimaran.export.dump import is_dump, is_measured, read_dump
from trimaran.export.entries import Table
from trimaran.export.launch import names_in
from trimaran.export.shell import Script, arguments_of, read_script, shown, unknown

MATTERS = ("--num-experts", "--context-parallel-size", "--expert-model-parallel-size")  # not to be overlooked in a dump
_TABLE = re.compile(r"^\s*\|?(?:\s*:?-+:?\s*\|){2,}", re.MULTILINE)  # notes quote commands, but they have tables
SHAPE = ("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size")


@dataclass(frozen=True)
class Launched:
    given: dict[str, list[str]]
    entry: str = ""  # the program that is started
    stated: dict[str, Any] = field(default_factory=dict)  # dotted fields that no flag says, and nodes
    unsure: dict[str, list[str]] = field(default_factory=dict)  # flags whose value only the running shell knows
    documents: tuple[dict[str, Any], ...] = ()  # JSON that the script writes

    @property
    def dumped(self) -> bool:
        """Whether these are all arguments that the trainer has, not those that somebody gave."""
        return not self.entry and "--world-size" in self.given

    def unread(self, table: Table) -> tuple[str, ...]:
        given = {flag: self.given[flag] for flag in MATTERS if flag in self.given} if self.dumped else self.given
        return (*table.meaning_lost(self.unsure), *table.unread(given))


def launched(text: str) -> Launched | None:
    """None where it is neither a launch script nor a dump of Megatron's."""
    if is_dump(text):
        given = read_dump(text)
        devices = given.setdefault("--world-size", [""])[0]
        given = {flag: words for flag, words in given.items() if flag not in MATTERS or words not in (["0"], ["1"])}
        return Launched(given, stated={"devices": int(devices)} if devices.isdigit() else {})
    if not any(flag in text for flag in SHAPE) or is_measured(text) or _TABLE.search(text):
        return None
    script = read_script(text)
    words = max(script.commands, key=lambda command: sum(word.startswith("--") for word in command), default=[])
    program = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)  # before it is the launcher
    given = arguments_of(words[program + 1 :])
    if not any(flag in given for flag in SHAPE):
        return None
    entry = words[program].rpartition("/")[2] if program >= 0 else ""
    unsure = {flag: shown(values) for flag, values in given.items() if unknown(values)}
    plain = {flag: values for flag, values in given.items() if flag not in unsure}
    called = script.sbatch.get("--job-name")
    stated = {**({"name": called} if called else {}), **names_in(text), **_machines(script, arguments_of(words))}
    if script.exported:
        stated["environment"] = script.exported
    return Launched(plain, entry, stated, unsure, tuple(_documents(script)))


def _machines(script: Script, given: dict[str, list[str]]) -> dict[str, int]:
    """Nodes and devices of a node, as torchrun, the deepspeed launcher or SLURM is told."""
    found: dict[str, int] = {}
    for name, flags in (
        ("nodes", ("--nnodes", "--num_nodes")),
        ("devices_per_node", ("--nproc_per_node", "--nproc-per-node", "--num_gpus")),
    ):
        for flag in flags:
            if given.get(flag) and given[flag][0].isdigit():
                found[name] = int(given[flag][0])
    if "nodes" not in found and script.sbatch.get("--nodes", "").isdigit():
        found["nodes"] = int(script.sbatch["--nodes"])
    return found


def _documents(script: Script) -> list[dict[str, Any]]:
    found = []
    for text in script.documents:
        try:
            document = json.loads(text)
        except ValueError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found
