"""The Setup that Megatron's argument dump describes: read by the same entries that read and write launch scripts.

A name that a dump does not hold, or holds without a usable value, stays unknown, since a log may be truncated.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trimaran.export import megatron_deepspeed, megatron_lm
from trimaran.export.argument_dump import flag_of, flags_of, names_of
from trimaran.export.flags import Fields, Flags, Given, SingleFlag, number
from trimaran.export.megatron_flags import PrecisionFlags
from trimaran.ledger.logs.usable import usable
from trimaran.spec import Mistake, Setup

_MODEL = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "mlp", "seq_len")
_FIELDS = {f"model.{name}": name for name in _MODEL} | {
    "layout.tp": "tp",
    "layout.pp": "pp",
    "layout.micro_batch": "mbs",
    "layout.recompute": "recompute",
    "precision": "precision",
}
# Megatron-LM's come last, because its recompute flags include those of the fork.
_ENTRIES: tuple[Flags, ...] = tuple(
    entry
    for table in (megatron_deepspeed.TABLE, megatron_lm.TABLE)
    for entry in table.entries()
    if (isinstance(entry, SingleFlag) and entry.field in _FIELDS)
    or isinstance(entry, megatron_lm.GroupedQueryAttention | megatron_lm.RecomputeFlags | PrecisionFlags)
)
_COUNTS = {  # printed as computed, or read without their ramp-up
    "--data-parallel-size": "dp",
    "--global-batch-size": "gbs",
    "--world-size": "devices",
}
# Printed, but not flags, or flags of older versions and other forks.
_OTHERS = (
    "activations_checkpoint_method context_parallel_size deepspeed fp8_e4m3 fp8_hybrid framework num_experts"
    " num_key_value_heads optimizer padded_vocab_size sequence_parallel squared_relu use_bnb_optimizer"
    " use_distributed_optimizer virtual_pipeline_model_parallel_size vocab_size zero_stage"
)
KNOWN = frozenset(  # a dump has 300 names
    names_of([*(flag for entry in _ENTRIES for flag in entry.flags), *_COUNTS]) | set(_OTHERS.split())
)
_LARGEST = 10**12  # beyond any size a job can have


def setup_of(arguments: Mapping[str, str]) -> Setup:
    given, printed = flags_of(arguments), {flag_of(name) for name in arguments}
    fields: Fields = {}
    for entry in _ENTRIES:
        if printed.intersection(entry.flags):
            with suppress(Mistake):
                fields |= entry.read(given)
    values: dict[str, Any] = {ours: fields.get(path) for path, ours in _FIELDS.items()}
    values = {ours: value for ours, value in values.items() if not isinstance(value, int) or 0 < value < _LARGEST}
    values |= {ours: _count(given, flag) for flag, ours in _COUNTS.items()}
    values |= {
        "vocab": _count(given, "--padded-vocab-size") or _count(given, "--vocab-size"),
        "virtual_stages": _virtual_stages(arguments, given),
        "zero": _zero(arguments),
        "sequence_parallel": _truth(arguments, "sequence_parallel"),
        "optimizer": "adam-8bit" if "--use-bnb-optimizer" in given else given.get("--optimizer", [None])[0],
    }
    if values.get("kv_heads") is None:
        values["kv_heads"] = _kv_heads(arguments, given)
    if values.get("mlp") is None:
        values["mlp"] = _mlp(arguments, given)
    if {"--fp8-e4m3", "--fp8-hybrid"} & given.keys():
        values["precision"] = "fp8"
    elif values.get("precision") == "fp32" and not {"--bf16", "--fp16"} <= printed:
        values["precision"] = None
    if values.get("recompute") in (None, "none") and "--activations-checkpoint-method" in printed:
        values["recompute"] = "full" if "--activations-checkpoint-method" in given else "none"
    return usable(Setup, values)


def remarks_of(arguments: Mapping[str, str]) -> list[str]:
    """What a Setup has no field for, and must not be forgotten when its numbers are compared."""
    given = flags_of(arguments)
    remarks = []
    experts, context = _count(given, "--num-experts"), _count(given, "--context-parallel-size")
    if experts and experts > 1:
        remarks.append(f"A mixture of {experts} experts: its sizes are not those of a dense model.")
    if context and context > 1:
        remarks.append(f"Context parallel over {context} devices, besides dp, tp and pp.")
    return remarks


def _count(given: Given, flag: str) -> int | None:
    with suppress(Mistake):
        value = number(given, flag, int)
        return value if value is not None and 0 < value < _LARGEST else None
    return None


def _truth(arguments: Mapping[str, str], name: str) -> bool | None:
    return {"True": True, "False": False}.get(arguments.get(name, ""))


def _kv_heads(arguments: Mapping[str, str], given: Given) -> int | None:
    grouped = _truth(arguments, "group_query_attention")
    if grouped is None:
        return _count(given, "--num-key-value-heads")
    return None if grouped else _count(given, "--num-attention-heads")


def _mlp(arguments: Mapping[str, str], given: Given) -> str | None:
    """GELU where no other activation is given."""
    if {"--squared-relu", "--glu-activation"} & given.keys():
        return None
    return "gelu" if "swiglu" in arguments or "glu_activation" in arguments else None


def _virtual_stages(arguments: Mapping[str, str], given: Given) -> int | None:
    if arguments.get("virtual_pipeline_model_parallel_size") == "None":
        return 1
    return _count(given, "--virtual-pipeline-model-parallel-size")


def _zero(arguments: Mapping[str, str]) -> int | None:
    """DeepSpeed's stage as printed, or our own; Megatron's own distributed optimizer shards what ZeRO 1 shards."""
    if _truth(arguments, "deepspeed") or ("deepspeed" not in arguments and "zero_stage" in arguments):
        stage = arguments.get("zero_stage", "").removesuffix(".0")
        return int(stage) if stage in ("0", "1", "2", "3") else None
    sharded = _truth(arguments, "use_distributed_optimizer")
    return None if sharded is None else int(sharded)
