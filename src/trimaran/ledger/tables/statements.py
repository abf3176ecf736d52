"""What the text, headings and code around a table state about it: shapes, sizes, batches, devices, one-liners."""

import ast
import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any

from trimaran.export.flags import ValueFlag
from trimaran.export.megatron_flags import MODEL

KEYS = {
    "NHIDDEN": "hidden",
    "NLAYERS": "layers",
    "NHEADS": "heads",
    "FFN_HIDDEN_SIZE": "ffn_hidden",
    "SEQ_LEN": "seq_len",
    "Sequence Length": "seq_len",
    "VOCAB_SIZE": "vocab",
    "VOCAB_LENGTH": "vocab",
    "GBS": "gbs",
    "BS": "gbs",
    "MBS": "mbs",
    "TP": "tp",
    "PP": "pp",
    "DP": "dp",
}
FLAGS = {
    entry.flag.removeprefix("--"): entry.field.removeprefix("model.") for entry in MODEL if isinstance(entry, ValueFlag)
}
SHAPE = {"layers", "hidden"}
ONLY_WITH_SHAPE = {"tp", "pp", "dp", "mbs"}  # elsewhere prose talks about layouts in general ("with DP=4 …")
CAMPAIGN = {"seq_len", "vocab", "device", "devices_per_node"}  # hold for all sections under the same top heading

ASSIGNED = re.compile(
    r"(?<![\w$])(" + "|".join(sorted(KEYS, key=len, reverse=True)) + r")\s*=\s*(\d{1,15})([kK]?)(?![\w/*.])"
)
FLAG = re.compile(r"--(" + "|".join(FLAGS) + r")[ =](\d{1,15})(?!\d)")
SIZE = re.compile(r"^\s*(?:[-*]\s+)?(\d+(?:\.\d+)?[BM])(?: model\b|,)|\bSIZE\s*=\s*(\d+(?:\.\d+)?[BM])", re.MULTILINE)
NODE = re.compile(r"nodes? of (\d{1,9})\s*x?\s*gpus?\s+([avh]\d{3})\s*-?(\d+)\s*gb", re.IGNORECASE)
CONSTRAINT = re.compile(r"--constraint=([avh]\d{3})-(\d+)g", re.IGNORECASE)
GRES = re.compile(r"--gres=gpu:(\d{1,9})")
NO_RECOMPUTE = re.compile(r"(removing|without|w/o|no)\s+`?--checkpoint-activations", re.IGNORECASE)
EIGHT_BIT = re.compile(r"(w/o|without)?\s*`?--use-bnb-optimizer", re.IGNORECASE)
REALLY = re.compile(
    r"(?:mistake|incorrect|wrong|invalid)[^.]*?\breally\b[^.]*?\b(\d+(?:\.\d+)?B)\b", re.IGNORECASE | re.S
)
PERL = re.compile(r"perl -le '(.+)'")


@dataclass
class Statement:
    """One paragraph, list or code block, and what it states."""

    line: int
    text: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def is_shape(self) -> bool:
        return bool(SHAPE & self.values.keys())


@dataclass(frozen=True)
class OneLiner:
    """A Perl one-liner that turned seconds into TFLOPs, with the constants it used."""

    line: int
    text: str
    values: dict[str, float]
    result: float


def statement(line: int, text: str) -> Statement:
    values: dict[str, Any] = {}
    for key, digits, thousand in ASSIGNED.findall(text):
        values[KEYS[key]] = int(digits) * (1000 if thousand else 1)
    for flag, digits in FLAG.findall(text):
        values[FLAGS[flag]] = int(digits)
    if not SHAPE & values.keys():
        values = {key: value for key, value in values.items() if key not in ONLY_WITH_SHAPE}
    if size := SIZE.search(text):
        values["size_label"] = size[1] or size[2]
    if node := NODE.search(text):
        values.update(devices_per_node=int(node[1]), device=f"{node[2].lower()}-{node[3]}gb")
    if constraint := CONSTRAINT.search(text):
        values["device"] = f"{constraint[1].lower()}-{constraint[2]}gb"
    if gres := GRES.search(text):
        values["devices_per_node"] = int(gres[1])
    if NO_RECOMPUTE.search(text):
        values["recompute"] = "none"
    if bnb := EIGHT_BIT.search(text):
        values["optimizer"] = "adam" if bnb[1] else "adam-8bit"
    if really := REALLY.search(text):
        values["really"] = really[1]
    return Statement(line, text, values)


def heading(line: int, title: str) -> Statement:
    """A heading can name the precision, the machine, or state values."""
    stated = statement(line, title)
    if title.strip().lower() in ("fp16", "bf16", "fp32", "fp8"):
        stated.values["precision"] = title.strip().lower()
    if re.search(r"fugaku|a64fx", title, re.IGNORECASE):
        stated.values["device"] = "a64fx"
    return stated


def one_liner(line: int, text: str) -> OneLiner | None:
    """`$ng=32*4; $sp=256; … print $ms*4*2*1024*$gbs / ($sp*$ng*1e3)`, or None where it is only a template."""
    match = PERL.search(text)
    if match is None or "print" not in match[1]:
        return None
    assignments, _, formula = match[1].partition("print")
    variables: dict[str, float] = {}
    for name, expression in re.findall(r"\$(\w+)\s*=\s*([^;]*);", assignments):
        value = arithmetic(expression)
        if value is None:
            return None
        variables[name] = value
    result = arithmetic(re.sub(r"\$(\w+)", lambda m: str(variables.get(m[1], "")), formula))
    if result is None:
        return None
    literals = [float(n) for n in re.findall(r"(?<![\w.$])\d+(?:\.\d+)?(?![\w.])", formula.partition("/")[0])]
    names = {"ng": "devices", "sp": "seconds", "ms": "size_b", "gbs": "gbs", "seqlen": "seq_len"}
    values = {names[name]: value for name, value in variables.items() if name in names}
    values.setdefault("seq_len", max([n for n in literals if n >= 128], default=0.0))
    values["factor"] = next((n for n in literals if n in (3.0, 4.0)), 0.0)
    return OneLiner(line, match[1].strip(), values, result)


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def arithmetic(text: str) -> float | None:
    """The finite value of an expression of numbers and + - * /; None for anything else, which is never executed."""
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (
        ValueError,
        SyntaxError,
        TypeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ):  # the last: nested too deep
        return None
    return value if math.isfinite(value) else None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return float(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise TypeError("not arithmetic")
