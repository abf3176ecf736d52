"""The fields of Megatron's iteration line: text between bars, found by name, since they come and go and change order.

Searched for, not split: a million lines have seventeen million fields, and seven of each line are of use.
"""

import math

ELAPSED = "elapsed time per iteration ("
_LARGEST = 10**15  # beyond any count a log can hold, below what a column can


def field(text: str, name: str) -> str:
    """What stands between the name and the next bar; '' where the line does not have the field."""
    begin = text.find(name)
    if begin < 0:
        return ""
    begin += len(name)
    return text[begin : text.find("|", begin)]


def number(raw: str, what: str) -> float:
    try:
        return float(raw)
    except ValueError:
        pass
    try:
        return float(raw.partition("/")[0])  # some forks print 'this one/mean of all'
    except ValueError:
        raise ValueError(f"{what} is {raw.strip()!r}, which is not a number") from None


def count(raw: str, what: str) -> int:
    try:
        value = int(raw)
    except ValueError:
        value = -1
    if not 0 <= value < _LARGEST:
        raise ValueError(f"{what} is {raw.strip()!r}, which is not a count")
    return value


def seconds(text: str) -> float:
    begin = text.find(ELAPSED) + len(ELAPSED)
    unit, _, raw = text[begin : text.find("|", begin)].partition("):")
    if unit not in ("s", "ms"):
        raise ValueError(f"the unit of the time is {unit!r}; s and ms are known")
    value = number(raw, "the time per iteration")
    value = value / 1000.0 if unit == "ms" else value
    if not 0.0 < value < math.inf:
        raise ValueError(f"the time per iteration is {raw.strip()}; only a positive number can be used")
    return value


def tflops(text: str) -> float:
    """NaN where none is printed."""
    raw = field(text, "| TFLOPs:") or field(text, "| throughput per GPU (TFLOP/s/GPU):")
    if not raw:
        return math.nan
    value = number(raw, "the throughput")
    if not 0.0 <= value < math.inf:
        raise ValueError(f"the throughput is {raw.strip()}; only a number from 0 up can be used")
    return value


def tokens_per_sample(first: str, last: str) -> int | None:
    """The sequence length: tokens over samples consumed between two lines, or since the start where there is one."""
    consumed = []
    for text in (first, last):
        samples, tokens = field(text, "| consumed samples:"), field(text, "| consumed tokens:")
        try:
            consumed.append((count(samples, "samples"), count(tokens, "tokens")))
        except ValueError:
            return None
    (first_samples, first_tokens), (samples_seen, tokens_seen) = consumed
    if first != last:
        samples_seen, tokens_seen = samples_seen - first_samples, tokens_seen - first_tokens
    if samples_seen <= 0 or tokens_seen <= 0 or tokens_seen % samples_seen:
        return None
    return tokens_seen // samples_seen


def is_same_iteration(one: str, other: str) -> bool:
    """Whether two ranks print the same iteration: they may differ in their clocks, not in samples and loss."""
    return all(field(one, name) == field(other, name) for name in ("| consumed samples:", "| lm loss:"))
