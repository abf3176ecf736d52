"""Rows against each other: repeats, swapped columns, memory and time that move the wrong way."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log
from statistics import median
from typing import Any

from trimaran.ledger.audit.finding import Finding, Level, capacity_gib, where
from trimaran.spec import Trial

SHAPE = ("device", "layers", "hidden", "ffn_hidden", "heads", "seq_len", "size_label")
LAYOUT = ("devices", "dp", "tp", "pp", "virtual_stages", "zero", "mbs", "gbs", "recompute", "optimizer")
CONDITIONS = ("precision", "environment")  # may differ between rows that are otherwise the same
SWAP_KEY = ("layers", "hidden", "devices", "dp", "tp", "pp", "mbs", "gbs")  # one of the two may omit the rest
NOISE = 0.005  # one snapshot against another on the same day: 0.6 %
SAME_DAY = 0.02
SCALING = 0.10
MEMORY = 0.02


def equal_groups(trials: Sequence[Trial], fields: Sequence[str], *, by_campaign: bool) -> Iterator[list[Trial]]:
    """Trials with equal fields; one of unknown layout cannot count as a repeat."""
    found: dict[Any, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.setup.tp is None or trial.setup.pp is None:
            continue
        values = tuple(getattr(trial.setup, field) for field in fields)
        campaign = (trial.source.file, trial.source.section.partition(" / ")[0])
        found[values, campaign if by_campaign else None].append(trial)
    return (group for group in found.values() if len(group) > 1)


def fields_without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in (*SHAPE, *LAYOUT) if name not in names)


def check_groups(trials: Sequence[Trial]) -> Iterator[Finding]:
    """All comparisons. `trials` carry the corrections of single rows, so that a wrong dp hides no repeat, and seconds
    computed from the TFLOPs where none are printed."""
    swapped = list(check_swapped([trial for trial in trials if trial.job is None]))
    yield from swapped
    known = {finding.trial for finding in swapped}
    rest = [trial for trial in trials if trial.id not in known]
    for group in equal_groups(rest, fields_without(), by_campaign=False):
        yield from check_repeats(group)
    for group in equal_groups(rest, fields_without("mbs"), by_campaign=True):
        yield from check_memory_rises(group)
        yield from check_oom(group)
    for group in equal_groups(rest, fields_without("gbs"), by_campaign=True):
        yield from check_scaling(group)


def check_swapped(trials: Sequence[Trial]) -> Iterator[Finding]:
    """A swap leaves seconds x TFLOPs as it is; only a second print of the same row reveals it."""
    for group in equal_groups(trials, SWAP_KEY, by_campaign=False):
        for first, second in _mirrored(group):
            near = [t for t in trials if t not in (first, second) and _alike(t, first) and t.outcome.seconds]
            if not near:
                message = f"Seconds and TFLOPs are swapped between this row and {where(second)}: one is wrong."
                yield Finding.of(first, "contradictory", "swapped", message, others=(second,))
                continue
            usual = median(_seconds(t) for t in near)
            wrong, right = sorted((first, second), key=lambda t: -abs(log(_seconds(t) / usual)))
            message = (
                f"{_seconds(wrong):g} s and {wrong.outcome.tflops:g} TFLOPs are swapped: {where(right)} prints"
                f" the same configuration the other way round, and its neighbours take {usual:g} s."
            )
            corrections = {"sec_per_it": wrong.outcome.tflops, "tflops": wrong.outcome.seconds}
            yield Finding.of(wrong, "impossible", "swapped", message, corrections, (right,))


def _mirrored(group: list[Trial]) -> Iterator[tuple[Trial, Trial]]:
    """Pairs of rows where one's seconds are the other's TFLOPs and the other way round."""
    seen: dict[tuple[float, float], Trial] = {}
    for trial in group:
        if trial.outcome.seconds and trial.outcome.tflops:
            pair = round(trial.outcome.seconds, 3), round(trial.outcome.tflops, 3)
            if pair[0] != pair[1] and pair[::-1] in seen:
                yield seen[pair[::-1]], trial
            seen.setdefault(pair, trial)


def _alike(trial: Trial, other: Trial) -> bool:
    return all(getattr(trial.setup, name) == getattr(other.setup, name) for name in SWAP_KEY if name != "mbs")


def check_repeats(group: list[Trial]) -> Iterator[Finding]:
    """The same configuration with different results: how far apart, and which conditions differ."""
    by_value: dict[Any, list[Trial]] = defaultdict(list)
    for trial in group:
        if trial.outcome.seconds:
            by_value[trial.outcome.seconds].append(trial)
    for same in by_value.values():
        dates = sorted({trial.source.date for trial in same if trial.source.date})
        if len(dates) > 1:
            message = f"The same numbers are printed under two dates, {' and '.join(dates)}."
            yield Finding.of(same[-1], "suspicious", "repeat", message, others=tuple(same[:-1]))
    values = sorted(by_value)
    if len(values) < 2 or values[-1] / values[0] - 1 < NOISE:
        return
    distinct = [by_value[value][0] for value in values]
    spread = values[-1] / values[0] - 1
    differ = [name for name in CONDITIONS if len({str(getattr(t.setup, name)) for t in distinct}) > 1]
    days = {trial.source.date for trial in distinct}
    level: Level = "contradictory" if spread > SAME_DAY and len(days) == 1 and not differ else "suspicious"
    listed = ", ".join(f"{_seconds(t):.6g} s" + (f" on {t.source.date}" if t.source.date else "") for t in distinct)
    under = f" (different or unknown: {', '.join(differ)})" if differ else ""
    message = (
        f"The same configuration was measured {len(distinct)} times with a spread of {spread:.1%}: {listed}{under}."
    )
    usual = median(values)
    odd = max(distinct, key=lambda t: abs(log(_seconds(t) / usual)))
    yield Finding.of(odd, level, "repeat", message, others=tuple(t for t in distinct if t is not odd))


def check_memory_rises(group: list[Trial]) -> Iterator[Finding]:
    known = sorted((t for t in group if t.outcome.memory_gib and t.setup.mbs), key=lambda t: t.setup.mbs or 0)
    for small, large in pairwise(known):
        less, more = small.outcome.memory_gib or 0, large.outcome.memory_gib or 0
        if (small.setup.mbs or 0) < (large.setup.mbs or 0) and less > (1 + MEMORY) * more:
            message = (
                f"{less:g} GB at micro batch {small.setup.mbs} are more than the {more:g} GB at {large.setup.mbs}"
                f" of {where(large)}, where memory must rise."
            )
            yield Finding.of(small, "contradictory", "memory", message, others=(large,))


def check_oom(group: list[Trial]) -> Iterator[Finding]:
    """Out of memory where a line through the memory of other micro batches stays below capacity."""
    known = [(t.setup.mbs or 0, t.outcome.memory_gib or 0) for t in group if t.outcome.memory_gib and t.setup.mbs]
    if len({mbs for mbs, _ in known}) < 2:
        return
    (few, low), (many, high) = min(known), max(known)
    slope = (high - low) / (many - few)
    for trial in group:
        capacity = capacity_gib(trial.setup)
        if trial.outcome.status != "oom" or not trial.setup.mbs or not capacity:
            continue
        line = low + slope * (trial.setup.mbs - few)
        if line < 0.9 * capacity:
            message = (
                f"Out of memory on {capacity:g} GB, while the memory printed for micro batches {few} and {many}"
                f" leads to {line:.0f} GB: the peak is not in the memory printed."
            )
            yield Finding.of(trial, "suspicious", "memory", message)


def check_scaling(group: list[Trial]) -> Iterator[Finding]:
    """Time is proportional to micro batches + stages - 1 when only the batch differs."""
    known = [t for t in group if t.outcome.seconds and _slots(t)]
    known.sort(key=lambda t: (t.source.date, t.setup.gbs or 0))
    for small, large in pairwise(known):
        if small.setup.gbs == large.setup.gbs or small.source.date != large.source.date:
            continue
        predicted = _seconds(large) * _slots(small) / _slots(large)
        error = _seconds(small) / predicted - 1
        if abs(error) > SCALING:
            message = (
                f"Time does not scale with the batch: {_seconds(small):g} s at {small.setup.gbs} against"
                f" {_seconds(large):g} s at {large.setup.gbs} of {where(large)}; {_slots(small)} of {_slots(large)}"
                f" pipeline slots predict {predicted:.1f} s ({error:+.1%})."
            )
            yield Finding.of(small, "contradictory", "scaling", message, others=(large,))


def _slots(trial: Trial) -> int:
    setup = trial.setup
    if not (setup.gbs and setup.dp and setup.mbs and setup.pp):
        return 0
    return setup.gbs // (setup.dp * setup.mbs) + setup.pp - 1


def _seconds(trial: Trial) -> float:
    return trial.outcome.seconds or 0.0
