"""The answer of a campaign in sentences: which layout, how it compares, how certain that is, and what to try next."""

from statistics import mean

from trimaran.cost.predict import COVERAGE
from trimaran.learn.trials import possible_job
from trimaran.planner.explain import explain
from trimaran.planner.tables import short_layout
from trimaran.report.campaign import Campaign, Row
from trimaran.spec import Layout

WORTH_TRYING = 0.01  # predicted speed-up over the fastest measured; less is not worth a trial


def headline(row: Row) -> str:
    setup = row.trial.setup
    sizes = [("DP", setup.dp), ("TP", setup.tp), ("PP", setup.pp)]
    degrees = " × ".join(f"{name} {size}" for name, size in sizes if size is not None)
    return ", ".join(word for word in (degrees, f"micro batch {setup.mbs}" if setup.mbs else "") if word) or row.label


def facts(row: Row) -> list[str]:
    """What else is known about it, in a few words each."""
    setup = row.trial.setup
    known = {
        "{} nodes": setup.nodes,
        "{} devices": setup.devices,
        "global batch {}": setup.gbs,
        "ZeRO {}": setup.zero,
        "recompute {}": setup.recompute,
        "{}": setup.precision,
        "optimizer {}": setup.optimizer,
        "{} virtual stages": setup.virtual_stages if (setup.virtual_stages or 1) > 1 else None,
        "sequence parallel": setup.sequence_parallel or None,
    }
    texts = [text.format(value) for text, value in known.items() if value is not None]
    return texts + [f"{name}={value}" for name, value in setup.environment.items()]


def reasons(campaign: Campaign) -> list[str]:
    """Compared with the other measurements, then by the cost model."""
    winner, sentences = campaign.winner, []
    if winner is None:
        return []
    others = campaign.comparable[1:]
    if others and winner.seconds is not None:
        second = others[0].seconds or 0.0
        sentences.append(
            f"The fastest of {len(campaign.comparable)} with the same model and batch; the next, {others[0].label},"
            f" takes {second:.4g} s, {second / winner.seconds - 1:.1%} more."
        )
    if campaign.job is not None:
        explanation = explain(campaign.job)
        limit = explanation.breakdown.bottleneck(0)
        sentences.append(f"The cost model: limited by {limit}; pipeline bubble {explanation.bubble:.1%}.")
    if campaign.plan is not None and _is_pick(campaign):
        sentences.append("It is the planner's pick. " + " ".join(campaign.plan.why))
    return sentences


def confidence(campaign: Campaign) -> list[str]:
    """How far the measurement and the cost model can be trusted."""
    winner, sentences = campaign.winner, []
    if winner is not None and winner.seconds is None:
        sentences.append("Nothing was measured yet; the interval is the cost model's for this cluster.")
    elif winner is not None:
        outcome = winner.trial.outcome
        if outcome.iterations and outcome.seconds_low and outcome.seconds_high:
            sentences.append(
                f"Measured over {outcome.iterations} iterations: half of them took {outcome.seconds_low:.4g} to"
                f" {outcome.seconds_high:.4g} s."
            )
        else:
            sentences.append("A single value, as its source prints it; the spread over iterations is unknown.")
    errors = [abs(row.error) for row in campaign.rows if row.error is not None]
    if errors:
        inside = [
            row.predicted.low <= row.seconds <= row.predicted.high
            for row in campaign.rows
            if row.predicted is not None and row.seconds is not None
        ]
        sentences.append(
            f"The cost model's mean error over these {len(errors)} trials is {mean(errors):.1%};"
            f" {mean(inside):.0%} lie inside its {COVERAGE:.0%} interval."
        )
    if campaign.plan is not None:
        ties = 1 + len(campaign.plan.ties)
        sentences.append(
            f"The plan's first {ties} layouts are within its error of each other."
            if ties > 1
            else "No layout ties with the plan's pick."
        )
    return sentences


def suggestion(campaign: Campaign) -> str | None:
    """The planner's pick, where it was not tried and is predicted to be faster."""
    plan, winner = campaign.plan, campaign.winner
    if plan is None or winner is None or winner.predicted is None or _is_pick(campaign):
        return None
    pick, seconds = plan.best.layout, plan.best.seconds
    gain = 1 - seconds / winner.predicted.seconds
    if gain < WORTH_TRYING or _was_tried(campaign, pick):
        return None
    return (
        f"The plan's pick was not tried: {short_layout(pick)} is predicted at {seconds:.4g} s"
        f" ({plan.best.seconds_low:.4g} to {plan.best.seconds_high:.4g}), {gain:.0%} less than the"
        f" {winner.predicted.seconds:.4g} s predicted for the fastest measured."
    )


def _is_pick(campaign: Campaign) -> bool:
    """Whether the fastest measured has the parallel degrees, micro batch and recompute of the plan's pick."""
    if campaign.plan is None or campaign.job is None:
        return False
    return _essentials(campaign.plan.best.layout) == _essentials(campaign.job.layout)


def _was_tried(campaign: Campaign, pick: Layout) -> bool:
    jobs = (possible_job(row.trial) for row in campaign.rows)
    return any(job is not None and _essentials(job.layout) == _essentials(pick) for job in jobs)


def _essentials(layout: Layout) -> tuple[int, int, int, int, str]:
    return layout.dp, layout.tp, layout.pp, layout.micro_batch, layout.recompute
