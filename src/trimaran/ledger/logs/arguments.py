"""Megatron's argument dump: 'name ........ value' lines at the start of a run, and the Setup they describe."""

import re
from collections.abc import Mapping
from typing import Any

from trimaran.spec import Setup

# Only these are of use: a dump has 300 names.
_WHOLE = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn_hidden",
    "num_attention_heads": "heads",
    "seq_length": "seq_len",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "data_parallel_size": "dp",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "world_size": "devices",
}
_OTHERS = (
    "activations_checkpoint_method bf16 checkpoint_activations context_parallel_size deepspeed fp16 fp8 fp8_e4m3 "
    "fp8_hybrid framework glu_activation group_query_attention num_experts num_key_value_heads num_query_groups "
    "optimizer padded_vocab_size recompute_granularity sequence_parallel squared_relu swiglu use_bnb_optimizer "
    "use_distributed_optimizer virtual_pipeline_model_parallel_size vocab_size zero_stage"
)
KNOWN = frozenset(_WHOLE) | frozenset(_OTHERS.split())
_LARGEST = 10**12  # beyond any size a job can have
_LINE = re.compile(r"\s*(\w+) \.{2,} (.*\S)\s*$")


def argument(body: str) -> tuple[str, str] | None:
    """Name and value, if this is a line of the dump."""
    found = _LINE.match(body)
    return (found[1], found[2]) if found else None


def setup_of(arguments: Mapping[str, str]) -> Setup:
    """What the dump says. A name it does not hold, or holds without a usable value, stays unknown."""
    values: dict[str, Any] = {field: _whole(arguments, name) for name, field in _WHOLE.items()}
    values |= {
        "kv_heads": _kv_heads(arguments),
        "mlp": _mlp(arguments),
        "vocab": _whole(arguments, "padded_vocab_size") or _whole(arguments, "vocab_size"),
        "virtual_stages": _virtual_stages(arguments),
        "zero": _zero(arguments),
        "recompute": _recompute(arguments),
        "sequence_parallel": _truth(arguments, "sequence_parallel"),
        "precision": _precision(arguments),
        "optimizer": _optimizer(arguments),
    }
    return Setup(**values)


def remarks_of(arguments: Mapping[str, str]) -> list[str]:
    """What a Setup has no field for, and must not be forgotten when its numbers are compared."""
    remarks = []
    experts, context = _whole(arguments, "num_experts"), _whole(arguments, "context_parallel_size")
    if experts and experts > 1:
        remarks.append(f"A mixture of {experts} experts: its sizes are not those of a dense model.")
    if context and context > 1:
        remarks.append(f"Context parallel over {context} devices, besides dp, tp and pp.")
    return remarks


def _whole(arguments: Mapping[str, str], name: str) -> int | None:
    try:
        value = int(arguments.get(name, "").strip("[]"))  # Megatron-DeepSpeed prints num_experts as a list
    except ValueError:
        return None
    return value if 0 < value < _LARGEST else None


def _truth(arguments: Mapping[str, str], name: str) -> bool | None:
    return {"True": True, "False": False}.get(arguments.get(name, ""))


def _kv_heads(arguments: Mapping[str, str]) -> int | None:
    grouped = _truth(arguments, "group_query_attention")
    if grouped is None:
        return _whole(arguments, "num_key_value_heads")
    return _whole(arguments, "num_query_groups" if grouped else "num_attention_heads")


def _mlp(arguments: Mapping[str, str]) -> str | None:
    gate = arguments.get("glu_activation", "None")
    if _truth(arguments, "swiglu") or gate == "swiglu":
        return "swiglu"
    if _truth(arguments, "squared_relu") or gate != "None":
        return None
    return "gelu" if "swiglu" in arguments or "glu_activation" in arguments else None


def _virtual_stages(arguments: Mapping[str, str]) -> int | None:
    if arguments.get("virtual_pipeline_model_parallel_size") == "None":
        return 1
    return _whole(arguments, "virtual_pipeline_model_parallel_size")


def _zero(arguments: Mapping[str, str]) -> int | None:
    """DeepSpeed's stage, or our own; Megatron's own distributed optimizer shards what ZeRO 1 shards."""
    if _truth(arguments, "deepspeed") or ("deepspeed" not in arguments and "zero_stage" in arguments):
        stage = arguments.get("zero_stage", "").removesuffix(".0")
        return int(stage) if stage in ("0", "1", "2", "3") else None
    sharded = _truth(arguments, "use_distributed_optimizer")
    return None if sharded is None else int(sharded)


def _recompute(arguments: Mapping[str, str]) -> str | None:
    granularity = arguments.get("recompute_granularity")
    if granularity in ("full", "selective"):
        return granularity
    older = (arguments.get("checkpoint_activations"), arguments.get("activations_checkpoint_method"))
    if any(value not in (None, "None", "False") for value in older):
        return "full"
    return None if granularity is None and older == (None, None) else "none"


def _precision(arguments: Mapping[str, str]) -> str | None:
    if arguments.get("fp8", "None") not in ("None", "False"):
        return "fp8"
    if _truth(arguments, "fp8_e4m3") or _truth(arguments, "fp8_hybrid"):
        return "fp8"
    halves = [name for name in ("bf16", "fp16") if _truth(arguments, name)]
    if halves:
        return halves[0]
    return "fp32" if "bf16" in arguments and "fp16" in arguments else None


def _optimizer(arguments: Mapping[str, str]) -> str | None:
    if _truth(arguments, "use_bnb_optimizer"):
        return "adam-8bit"
    name = arguments.get("optimizer", "None")
    return None if name == "None" else name
