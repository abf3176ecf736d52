"""The answer of a campaign in words: which layout, how it compares, how sure that is, and what to try next."""

from statistics import mean

from trimaran.cost.predict import COVERAGE
from trimaran.planner.explained import explained
from trimaran.report.campaign import Campaign, Row
from trimaran.report.jobs import job_of
from trimaran.spec import Layout

WORTH_TRYING = 0.01  # faster than the fastest measured: less is not worth a trial


def headline(row: Row) -> str:
    setup = row.trial.setup
    sizes = [("DP", setup.dp), ("TP", setup.tp), ("PP", setup.pp)]
    cut = " × ".join(f"{name} {size}" for name, size in sizes if size is not None)
    return ", ".join(word for word in (cut, f"micro batch {setup.mbs}" if setup.mbs else "") if word) or row.label


def facts(row: Row) -> list[str]:
    """What else is known of it, in a few words each."""
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
    said = [text.format(value) for text, value in known.items() if value is not None]
    return said + [f"{name}={value}" for name, value in setup.environment.items()]


def why(campaign: Campaign) -> list[str]:
    """Against the others that were measured, then against what the planner knows."""
    winner, said = campaign.winner, []
    if winner is None:
        return []
    others = campaign.comparable[1:]
    if others and winner.seconds is not None:
        second = others[0].seconds or 0.0
        said.append(
            f"The fastest of {len(campaign.comparable)} measured that do the same work; the next, {others[0].label},"
            f" takes {second:.4g} s, {second / winner.seconds - 1:.1%} more."
        )
    if campaign.job is not None:
        made = explained(campaign.job)
        said.append(f"By the cost model it is limited by {made.parts.limiting(0)}; its bubble is {made.bubble:.1%}.")
    if campaign.plan is not None and _is_pick(campaign):
        said.append("It is what the planner picks. " + " ".join(campaign.plan.why))
    return said


def sure(campaign: Campaign) -> list[str]:
    """How far the measurement and the model can be trusted."""
    winner, said = campaign.winner, []
    if winner is not None and winner.seconds is None:
        said.append("None of this was measured yet; the interval is what the cost model knows of this cluster.")
    elif winner is not None:
        outcome = winner.trial.outcome
        if outcome.iterations and outcome.seconds_low and outcome.seconds_high:
            said.append(
                f"Measured over {outcome.iterations} iterations: half of them took {outcome.seconds_low:.4g} to"
                f" {outcome.seconds_high:.4g} s."
            )
        else:
            said.append("Measured once, as its source prints it; how much iterations differed is not told.")
    errors = [abs(row.error) for row in campaign.rows if row.error is not None]
    if errors:
        inside = [
            row.expected.low <= row.seconds <= row.expected.high
            for row in campaign.rows
            if row.expected is not None and row.seconds is not None
        ]
        said.append(
            f"The cost model is off by {mean(errors):.1%} in the mean over the {len(errors)} rows here, and"
            f" {mean(inside):.0%} lie inside its {COVERAGE:.0%} interval."
        )
    if campaign.plan is not None:
        ties = 1 + len(campaign.plan.ties)
        said.append(
            f"The plan cannot tell its first {ties} layouts apart."
            if ties > 1
            else "The plan's first layout stands alone."
        )
    return said


def next_step(campaign: Campaign) -> str | None:
    """The planner's pick, where it was not tried and is predicted to be faster."""
    plan, winner = campaign.plan, campaign.winner
    if plan is None or winner is None or winner.expected is None or _is_pick(campaign):
        return None
    pick, seconds = plan.best.layout, plan.best.seconds
    gain = 1 - seconds / winner.expected.seconds
    if gain < WORTH_TRYING or _was_tried(campaign, pick):
        return None
    return (
        f"The plan's pick was not tried: {layout_words(pick)} is predicted at {seconds:.4g} s"
        f" ({plan.best.seconds_low:.4g} to {plan.best.seconds_high:.4g}), {gain:.0%} less than the"
        f" {winner.expected.seconds:.4g} s predicted for the fastest measured."
    )


def layout_words(layout: Layout) -> str:
    said = f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, micro batch {layout.micro_batch}"
    said += f", recompute {layout.recompute}, ZeRO {layout.zero}"
    said += f", {layout.schedule}" if layout.schedule != "1f1b" else ""
    said += f" x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
    return said + (", sequence parallel" if layout.sequence_parallel else "")


def _is_pick(campaign: Campaign) -> bool:
    """Whether the fastest measured has the cut, micro batch and recompute of the plan's first."""
    if campaign.plan is None or campaign.job is None:
        return False
    return _cut(campaign.plan.best.layout) == _cut(campaign.job.layout)


def _was_tried(campaign: Campaign, pick: Layout) -> bool:
    jobs = (job_of(row.trial) for row in campaign.rows)
    return any(job is not None and _cut(job.layout) == _cut(pick) for job in jobs)


def _cut(layout: Layout) -> tuple[int, int, int, int, str]:
    return layout.dp, layout.tp, layout.pp, layout.micro_batch, layout.recompute
