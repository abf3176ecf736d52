"""The fields of Megatron's iteration line: text between bars, found by name, since versions and options differ.

A million lines have seventeen million fields. So a line is read by the field positions of an earlier line
with as many fields, checked by name; only a line that cannot be read is parsed again, slowly, for the reason.
"""

import math
import re

ELAPSED = "elapsed time per iteration ("
_TIMES = (" elapsed time per iteration (s):", " elapsed time per iteration (ms):")
_BATCH, _LOSS = " global batch size:", " lm loss:"
_SKIPPED, _NAN = " number of skipped iterations:", " number of nan iterations:"
_TFLOPS = (" TFLOPs:", " throughput per GPU (TFLOP/s/GPU):")
_COUNTS = {
    _BATCH: "the global batch size",
    _SKIPPED: "the number of skipped iterations",
    _NAN: "the number of nan iterations",
}
_WANTED = (_TIMES, (_BATCH,), (_LOSS,), (_SKIPPED,), (_NAN,), _TFLOPS)
_LARGEST = 10**15  # beyond any count a log can hold, below what a column can
_SLASHED = re.compile(r"(\d)/[\d.]+ *\|")


# iteration, total, global batch, skipped, nan; seconds, TFLOPs, loss. 0, NaN and None where it is not printed.
Iteration = tuple[int, int, int, int, int, float, float, float | None]


class _Counts(dict[str, int]):
    """A cache of parsed counts: all but the iteration are the same on nearly every line."""

    def __missing__(self, raw: str) -> int:
        value = int(raw) if raw else 0
        if not 0 <= value < _LARGEST:
            raise ValueError
        self[raw] = value
        return value


class FieldPositions:
    """Which of the parts between bars hold the fields that are used."""

    def __init__(self, parts: list[str]) -> None:
        places = {part[: part.find(":") + 1]: place for place, part in enumerate(parts)}
        found = [next((name for name in names if name in places), "") for names in _WANTED]
        self.scale = 1000.0 if found[0] == _TIMES[1] else 1.0
        self._slots = [(places[name] if name else -1, name, len(name)) for name in found]
        self.missing = [name for names, name in zip(_WANTED, found, strict=True) if not name for name in names]

    def values(self, parts: list[str]) -> list[str] | None:
        """The value of each wanted field, '' for one that is missing; None if its fields are at other positions."""
        values = []
        for place, name, length in self._slots:  # a missing field is '' of the '' after the last bar
            part = parts[place]
            if not part.startswith(name):
                return None
            values.append(part[length:])
        return values


class IterationParser:
    def __init__(self) -> None:
        self._positions: dict[int, FieldPositions] = {}
        self._counts = _Counts()

    def parse(self, text: str) -> Iteration:
        """A line from 'iteration ' to its last bar; the message of a ValueError says why it cannot be used."""
        try:
            return self._parse(text)
        except ValueError:
            head, bar, rest = text.partition("|")
            shorter = head + bar + _SLASHED.sub(r"\1 |", rest)  # some forks print 'this one/mean of all'
            why = _reason(shorter)
            if why:
                raise ValueError(why) from None
            return self._parse(shorter)

    def _parse(self, text: str) -> Iteration:
        parts = text.split("|")
        positions = self._positions.get(len(parts))
        values = None
        if positions and not (positions.missing and any(name in text for name in positions.missing)):
            values = positions.values(parts)
        if positions is None or values is None:
            positions = self._positions[len(parts)] = FieldPositions(parts)
            values = positions.values(parts) or []
        time, size, loss, skipped, nan, tflops = values
        head, _, total = parts[0][len("iteration ") :].partition("/")
        number = int(head)
        seconds = float(time) / positions.scale
        throughput = float(tflops) if tflops else math.nan
        if not (0 <= number < _LARGEST and 0.0 < seconds < math.inf):
            raise ValueError
        if tflops and not 0.0 <= throughput < math.inf:
            raise ValueError
        counts = self._counts
        last_loss = float(loss) if loss else None
        return number, counts[total], counts[size], counts[skipped], counts[nan], seconds, throughput, last_loss


def _field(text: str, name: str) -> str:
    """The text between the name and the next bar, '' without such a field."""
    begin = text.find("|" + name)
    if begin < 0:
        return ""
    begin += 1 + len(name)
    return text[begin : text.find("|", begin)]


def _reason(text: str) -> str:
    """Why a line cannot be used; '' when it can."""
    number, _, total = text.partition("|")[0].removeprefix("iteration ").partition("/")
    if not (_is_count(number) and _is_count(total)):
        return f"'{number.strip()}/{total.strip()}' is not the number of an iteration"
    begin = text.find(ELAPSED) + len(ELAPSED)
    if begin < len(ELAPSED):
        return "it has no time per iteration"
    unit, _, raw = text[begin : text.find("|", begin)].partition("):")
    if unit not in ("s", "ms"):
        return f"the unit of the time is {unit!r}; s and ms are known"
    if not 0.0 < _number(raw) < math.inf:
        return f"the time per iteration is {raw.strip()!r}; only a positive number can be used"
    for name in _TFLOPS:
        raw = _field(text, name)
        if raw and not 0.0 <= _number(raw) < math.inf:
            return f"the throughput is {raw.strip()!r}; only a number from 0 up can be used"
    for name, what in _COUNTS.items():
        raw = _field(text, name)
        if raw and not _is_count(raw):
            return f"{what} is {raw.strip()!r}, which is not a count"
    raw = _field(text, _LOSS)
    return "" if not raw or _is_number(raw) else f"the loss is {raw.strip()!r}, which is not a number"


def _is_count(raw: str) -> bool:
    return raw.strip().isdecimal() and len(raw.strip()) < len(str(_LARGEST))


def _is_number(raw: str) -> bool:
    try:
        float(raw)
    except ValueError:
        return False
    return True


def _number(raw: str) -> float:
    return float(raw) if _is_number(raw) else math.nan


def tokens_per_sample(first: str, last: str) -> int | None:
    """The sequence length: tokens per sample consumed between two lines, or since the start if there is only one."""
    consumed = []
    for text in (first, last):
        pair = [_field(text, name) for name in (" consumed samples:", " consumed tokens:")]
        if not all(_is_count(raw) for raw in pair):
            return None
        consumed.append([int(raw) for raw in pair])
    samples, tokens = consumed[1]
    if first != last:
        samples, tokens = samples - consumed[0][0], tokens - consumed[0][1]
    return tokens // samples if samples > 0 and tokens > 0 and tokens % samples == 0 else None


def is_same_iteration(one: str, other: str) -> bool:
    """Whether two ranks print the same iteration: they may differ in their clocks, not in samples and loss."""
    return all(_field(one, name) == _field(other, name) for name in (" consumed samples:", _LOSS))
