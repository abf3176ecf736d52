"""The layouts that figures of bars compare: the fastest measured, and the planner's pick where it was not tried."""

from trimaran.planner.explained import Explained, explained
from trimaran.report.campaign import Campaign
from trimaran.report.figures.figure import MOST
from trimaran.report.jobs import job_of
from trimaran.report.rows import layout_of
from trimaran.spec import Trial

PICK = "the plan's pick"


def shown(campaign: Campaign) -> list[tuple[str, Explained, Trial | None]]:
    """Of each layout its fastest trial; the trial is None of one that nobody ran."""
    found: list[tuple[str, Explained, Trial | None]] = []
    seen = set()
    for row in campaign.comparable:
        job = job_of(row.trial)
        if job is None or job.layout in seen or len(found) == MOST - 1:
            continue
        seen.add(job.layout)
        short = row.label if row.trial.source.kind == "run" else layout_of(row.trial)
        taken = any(label == short for label, _, _ in found)
        found.append((row.label if taken else short, explained(job), row.trial))
    plan = campaign.plan
    if plan is not None and plan.best.layout not in seen:
        found.append((PICK, explained(plan.best.job), None))
    return found
