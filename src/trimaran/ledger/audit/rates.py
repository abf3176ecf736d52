"""TFLOPs x devices x seconds are the FLOPs of a step: which formula gives the same?

Explanations of a mismatch are tried from the weakest assumption on: milliseconds, another formula, another batch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimaran.cost.identify import FormulaMatch, match_formulas, printed_as, step_flops, tags_of
from trimaran.ledger.audit.finding import Finding, peak_tflops
from trimaran.spec import Setup, Trial

AGREES = 0.01  # published rows agree with their formula within 0.1 %, Fugaku's (rounded to 0.005) within 0.7 %
ROUGHLY_AGREES = 0.08  # a size such as "187B" is rounded; without the vocabulary only the layers can be counted
STRICT = 0.002  # needed to force a correction
BIGSCIENCE = ("exact-4", "exact-3", "approx-4", "approx-3")
NAMES = {"label-4": "approx-4", "label-3": "approx-3", "exact-4": "exact", "exact-3": "exact"}


@dataclass(frozen=True)
class Rate:
    """Seconds and TFLOPs of a row, where both are printed and the devices are known."""

    setup: Setup
    seconds: float
    tflops: float

    @classmethod
    def of(cls, trial: Trial) -> "Rate | None":
        seconds, tflops = trial.outcome.seconds, trial.outcome.tflops
        if seconds is None or tflops is None or trial.setup.devices is None:
            return None
        return cls(trial.setup, seconds, tflops)

    def nearest(self, tags: tuple[str, ...], seconds: float | None = None) -> FormulaMatch | None:
        """Of these formulas the one whose TFLOPs are nearest to the printed ones."""
        found = match_formulas(self.setup, seconds or self.seconds, self.tflops, tags)
        return min(found, key=lambda fit: (not self.agrees(fit), abs(fit.error)), default=None)

    def agrees(self, fit: FormulaMatch | None) -> bool:
        if fit is None:
            return False
        rough = fit.tag.startswith("label") or (fit.tag.startswith("approx") and self.setup.vocab is None)
        return abs(fit.error) < (ROUGHLY_AGREES if rough else AGREES)


def with_seconds(trial: Trial, tags: tuple[str, ...]) -> Trial:
    """The same trial with the seconds that its TFLOPs imply, where a table prints no seconds."""
    outcome, devices = trial.outcome, trial.setup.devices
    flops = next((flops for tag in tags if (flops := step_flops(trial.setup, tag))), None)
    if outcome.seconds or not outcome.tflops or not devices or not flops:
        return trial
    implied = flops / (outcome.tflops * devices * 1e12)
    return trial.model_copy(update={"outcome": outcome.model_copy(update={"seconds": implied})})


def section(trial: Trial) -> tuple[str, str]:
    return trial.source.file, trial.source.section


def section_formulas(trials: Sequence[Trial]) -> dict[tuple[str, str], str]:
    """The formula each section of a source used, by majority of the rows that do not name theirs."""
    votes: dict[tuple[str, str], Counter[str]] = {}
    for trial in trials:
        count = votes.setdefault(section(trial), Counter())
        if trial.outcome.tflops_formula in ("approx-4", "approx-3", "exact"):
            continue  # the row names it
        rate = Rate.of(trial)
        if rate is None:
            continue
        found = match_formulas(rate.setup, rate.seconds, rate.tflops, (*BIGSCIENCE, "label-4", "label-3"))
        if found and abs(found[0].error) < AGREES:
            count[NAMES.get(found[0].tag, found[0].tag)] += 1
    return {key: min(count, key=lambda tag: (-count[tag], tag)) for key, count in votes.items() if count}


def expected_tags(trial: Trial, formulas: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """The formulas consistent with the row's table; all of BigScience's where that is unknown."""
    setup, name = trial.setup, trial.outcome.tflops_formula or formulas.get(section(trial))
    named = tags_of(name, setup)
    families = [tag.partition("-")[0] for tag in named] if named else ["exact", "approx", "label"]
    if named and families[0] not in ("exact", "approx"):
        return named
    if setup.to_model() is None and "label" not in families:
        families.append("label")
    factors = "43" if setup.recompute is None else _factor(trial)
    return tuple(f"{family}-{factor}" for family in families for factor in factors)


def check_rate(
    trial: Trial, formulas: dict[tuple[str, str], str], stated_batch: int | None = None
) -> Iterator[Finding]:
    rate = Rate.of(trial)
    tags = expected_tags(trial, formulas)
    fit = rate.nearest(tags) if rate else None
    if rate is None or fit is None:
        yield from _over_peak(trial)
        return
    if rate.agrees(fit):
        yield from _over_peak(trial, rate)
        return
    found = (
        _milliseconds(trial, rate, tags)
        or _other_formula(trial, rate, tags)
        or _other_batch(trial, rate, tags, stated_batch)
    )
    if found:
        yield found
        return
    message = (
        f"{rate.tflops:g} TFLOPs are {rate.tflops / fit.tflops:.4f} x the {fit.tflops:.4g} that the {fit.tag} formula"
        f" gives for {rate.seconds:g} s on {rate.setup.devices} devices; no other formula, unit or batch explains it."
    )
    by_label = printed_as(rate.setup, rate.seconds, f"label-{_factor(trial)}")
    if by_label and _power_of_two(rate.tflops / by_label):
        message += (
            f" It is {rate.tflops / by_label:.3g} x what the printed size gives: a constant was off by that factor."
        )
    yield Finding.of(trial, "contradictory", "flops", message)


def _milliseconds(trial: Trial, rate: Rate, tags: tuple[str, ...]) -> Finding | None:
    seconds = rate.seconds / 1000
    fit = rate.nearest(tags, seconds)
    if fit is None or not rate.agrees(fit):
        return None
    message = (
        f"{rate.seconds:.10g} under a seconds heading are milliseconds: {seconds:.10g} s give {fit.tflops:.4g} TFLOPs"
        f" by the {fit.tag} formula, where {rate.tflops:g} is printed."
    )
    return Finding.of(trial, "impossible", "milliseconds", message, {"sec_per_it": round(seconds, 10)})


def _other_formula(trial: Trial, rate: Rate, tags: tuple[str, ...]) -> Finding | None:
    factors = "43" if trial.setup.recompute is None else _factor(trial)
    for tag in (tag for tag in BIGSCIENCE if tag[-1] in factors):
        value = printed_as(rate.setup, rate.seconds, tag)
        if tag not in tags and value is not None and abs(value / rate.tflops - 1) < STRICT:
            expected = printed_as(rate.setup, rate.seconds, tags[0])
            message = (
                f"{rate.tflops:g} TFLOPs come from the {tag} formula ({value:.2f}), not from the table's"
                f" {NAMES.get(tags[0], tags[0])}" + (f", which gives {expected:.2f}." if expected else ".")
            )
            name = tag if tag.startswith("approx") else "exact"
            return Finding.of(trial, "impossible", "formula", message, {"tflops_formula": name})
    return None


def _other_batch(trial: Trial, rate: Rate, tags: tuple[str, ...], stated: int | None) -> Finding | None:
    """Forced only when the printed batch is beyond the device's peak, or the text states the implied one."""
    setup = trial.setup
    value = printed_as(setup, rate.seconds, tags[0])
    if value is None or setup.gbs is None:
        return None
    ratio = rate.tflops / value
    implied = setup.gbs * ratio
    unit = (setup.dp or 1) * (setup.mbs or 1)
    batch = round(implied / unit) * unit
    peak = peak_tflops(setup)
    beyond = peak is not None and value > peak and _power_of_two(ratio)
    if batch <= 0 or abs(implied / batch - 1) > STRICT or not (beyond or batch == stated):
        return None
    why = f"{value:.0f} TFLOPs, over the device's peak of {peak:g}" if beyond else f"{value:.2f} TFLOPs"
    confirmed = ", which the text above the table states" if stated == batch else ""
    message = (
        f"A global batch of {setup.gbs} in {rate.seconds:g} s would be {why};"
        f" the printed {rate.tflops:g} imply a batch of {implied:.1f}, so {batch}{confirmed}."
    )
    return Finding.of(trial, "impossible", "batch", message, {"gbs": batch})


def _over_peak(trial: Trial, agreeing: Rate | None = None) -> Iterator[Finding]:
    """`agreeing`: seconds x TFLOPs is right, but the two may still be swapped."""
    peak, tflops = peak_tflops(trial.setup), trial.outcome.tflops
    if peak is None or tflops is None or tflops <= peak:
        return
    if agreeing and agreeing.seconds <= peak:
        message = f"{tflops:g} TFLOPs are over the peak of {peak:g}; swapped with the seconds they are possible."
        corrections = {"sec_per_it": tflops, "tflops": agreeing.seconds}
        yield Finding.of(trial, "impossible", "swapped", message, corrections)
    else:
        message = f"{tflops:g} TFLOPs per device are over the {trial.setup.device}'s peak of {peak:g}."
        yield Finding.of(trial, "contradictory", "peak", message)


def _factor(trial: Trial) -> str:
    return "3" if trial.setup.recompute == "none" else "4"


def _power_of_two(ratio: float) -> bool:
    return any(abs(ratio * 2.0**k - 1) < STRICT for k in range(-6, 7) if k)
