"""The arguments that Megatron prints when it starts, `name ..... value`: parsed, and written for our own trainer's log.

Launch files (launch_command.py) and the ledger's log reader both parse them here.
"""

import ast
import re
from collections.abc import Iterable, Mapping

from trimaran.export.flags import ValueFlag, field_of
from trimaran.export.megatron_flags import MODEL, PARALLELISM
from trimaran.spec import Job

_LINE = re.compile(r"(?:\[[^\]]*\]:)?\s*(\w+) \.{2,} (.*\S)\s*$")
_ITERATION = re.compile(r"\biteration\s+\d+/\s*\d+ \|")
_COLUMN = 48  # of the values
# Flags that switch off what the dump names positively, and values that are printed under another name.
_NEGATED = {"--add-bias-linear": "--disable-bias-linear"}
_RENAMED = {"--fp8": "--fp8-format"}


def parse_argument(line: str) -> tuple[str, str] | None:
    """Name and value, if this is a line of the dump."""
    match = _LINE.match(line)
    return (match[1], match[2]) if match else None


def parse_dump(text: str) -> dict[str, str]:
    """The arguments of a dump without iterations; a log that also has iterations is a measurement, and gives none."""
    arguments = {} if has_iterations(text) else dict(filter(None, map(parse_argument, text.splitlines())))
    return arguments if len(arguments) > 5 else {}


def has_iterations(text: str) -> bool:
    return bool(_ITERATION.search(text))


def flags_of(arguments: Mapping[str, str]) -> dict[str, list[str]]:
    """The flags that give these arguments; what is None or switched off needs none."""
    given: dict[str, list[str]] = {}
    for name, value in arguments.items():
        flag = flag_of(name)
        if flag in _NEGATED:
            flag, value = _NEGATED[flag], str(value == "False")
        if value == "True":
            given[flag] = []
        elif value not in ("None", "False", "[]"):
            given[flag] = _words(value)
    return given


def flag_of(name: str) -> str:
    flag = "--" + (name if name == "deepspeed_config" else name.replace("_", "-"))
    return _RENAMED.get(flag, flag)


def names_of(flags: Iterable[str]) -> set[str]:
    """How a dump names the arguments of these flags."""
    printed = {flag: name for name, flag in (_NEGATED | _RENAMED).items()}
    return {printed.get(flag, flag).removeprefix("--").replace("-", "_") for flag in flags}


def _words(value: str) -> list[str]:
    if value.startswith("["):
        try:
            return [str(item) for item in ast.literal_eval(value)]
        except (ValueError, SyntaxError, TypeError):
            return [value]
    return [value.rpartition(".")[2] if re.fullmatch(r"[A-Z]\w+\.\w+", value) else value]  # an enumeration's member


def argument_lines(job: Job) -> list[str]:
    """The dump of our own trainer, so that a log states which Job its iterations belong to."""
    model, layout = job.model, job.layout
    arguments = {
        "framework": job.trainer.name,
        **{
            name: field_of(job, entry.field)
            for entry in (*MODEL, *PARALLELISM)
            if isinstance(entry, ValueFlag)
            for name in names_of(entry.flags)
        },
        "group_query_attention": model.kv_heads < model.heads,
        "num_query_groups": model.kv_heads,
        "swiglu": model.mlp == "swiglu",
        "padded_vocab_size": model.vocab_rows(layout.tp),
        "data_parallel_size": layout.dp,
        "virtual_pipeline_model_parallel_size": layout.virtual_stages if layout.virtual_stages > 1 else None,
        "sequence_parallel": layout.sequence_parallel,
        "zero_stage": layout.zero,
        "recompute_granularity": None if layout.recompute == "none" else layout.recompute,
        "global_batch_size": job.batch.size,
        "world_size": layout.devices,
        "bf16": job.precision in ("bf16", "fp8"),
        "fp16": job.precision == "fp16",
        "fp8": "hybrid" if job.precision == "fp8" else None,
        "optimizer": job.optimizer,
    }
    return [f"  {name} {'.' * (_COLUMN - len(name))} {value}" for name, value in arguments.items()]
