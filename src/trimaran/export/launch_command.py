"""LaunchCommand: the program and flags that a launch script starts, or an argument dump was printed by."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trimaran.export.argument_dump import flags_of, has_iterations, parse_dump
from trimaran.export.flags import FlagTable, count
from trimaran.export.launch_script import read_names
from trimaran.export.shell import UNKNOWN, ShellScript, parse_flags, read_script

# Of a dump, which lists every argument, only these are reported as not understood.
REPORTED = ("--num-experts", "--context-parallel-size", "--expert-model-parallel-size")
_MARKDOWN_TABLE = re.compile(r"^\s*\|?(?:\s*:?-+:?\s*\|){2,}", re.MULTILINE)  # of notes that quote a command
# A launch script has at least one of these.
SHAPE = ("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size")


@dataclass(frozen=True)
class LaunchCommand:
    given: dict[str, list[str]]
    program: str = ""
    stated: dict[str, Any] = field(default_factory=dict)  # dotted fields that no flag has, and nodes
    unsure: dict[str, list[str]] = field(default_factory=dict)  # flags whose value only the running shell knows
    documents: tuple[dict[str, Any], ...] = ()  # JSON that the script writes

    @property
    def is_dump(self) -> bool:
        """Whether these are all arguments that the trainer has, not only those that were given."""
        return not self.program and "--world-size" in self.given

    def unread(self, table: FlagTable) -> tuple[str, ...]:
        given = {flag: self.given[flag] for flag in REPORTED if flag in self.given} if self.is_dump else self.given
        return (*table.undetermined(self.unsure), *table.unread(given))


def read_launch_command(text: str) -> LaunchCommand | None:
    """None where it is neither a launch script nor a dump of Megatron's."""
    if arguments := parse_dump(text):
        given = flags_of(arguments)
        devices = count(next(iter(given.setdefault("--world-size", [""])), ""))
        given = {flag: words for flag, words in given.items() if flag not in REPORTED or words not in (["0"], ["1"])}
        return LaunchCommand(given, stated={} if devices is None else {"devices": devices})
    if not any(flag in text for flag in SHAPE) or has_iterations(text) or _MARKDOWN_TABLE.search(text):
        return None
    script = read_script(text)
    words = max(script.commands, key=lambda command: sum(word.startswith("--") for word in command), default=[])
    program = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)  # before it is the launcher
    given = parse_flags(words[program + 1 :])
    if not any(flag in given for flag in SHAPE):
        return None
    name = words[program].rpartition("/")[2] if program >= 0 else ""
    unsure, plain = dict[str, list[str]](), dict[str, list[str]]()
    for flag, values in given.items():
        if any(UNKNOWN in value for value in values):
            unsure[flag] = [value.replace(UNKNOWN, "") for value in values]
        else:
            plain[flag] = values
    job_name = script.sbatch.get("--job-name")
    stated = {**({"name": job_name} if job_name else {}), **read_names(text), **_machines(script, parse_flags(words))}
    if script.exported:
        stated["environment"] = script.exported
    return LaunchCommand(plain, name, stated, unsure, tuple(_documents(script)))


def _machines(script: ShellScript, given: dict[str, list[str]]) -> dict[str, int]:
    """Nodes and devices per node, as given to torchrun, the deepspeed launcher or SLURM."""
    found: dict[str, int] = {}
    for name, flags in (
        ("nodes", ("--nnodes", "--num_nodes")),
        ("devices_per_node", ("--nproc_per_node", "--nproc-per-node", "--num_gpus")),
    ):
        for flag in flags:
            if given.get(flag) and (stated := count(given[flag][0])) is not None:
                found[name] = stated
    if "nodes" not in found and (nodes := count(script.sbatch.get("--nodes", ""))) is not None:
        found["nodes"] = nodes
    return found


def _documents(script: ShellScript) -> list[dict[str, Any]]:
    found = []
    for text in script.documents:
        with suppress(ValueError, RecursionError):
            found.append(json.loads(text))
    return [document for document in found if isinstance(document, dict)]
