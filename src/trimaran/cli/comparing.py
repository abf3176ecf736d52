"""`trimaran plan --compare`: the question a job of the user's asks, and what is said of its own layout."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.planner.compare import Compared
    from trimaran.planner.question import Question
    from trimaran.planner.ranking import Choices
    from trimaran.spec import Job


def asked_for(file: Path, on: str, given: dict[str, Any]) -> "Job":
    """The job to compare: a job file, or a launch file on the cluster that --on names."""
    import sys

    from trimaran.cli.importing import job_of_launch_file, launch_file
    from trimaran.spec import Mistake
    from trimaran.spec.files import load_job

    for option, value in given.items():
        if value:
            raise Mistake(f"{option} is {value!r}, but {file} says that already; leave it out, or change the file.")
    launch = launch_file([file])
    if launch is not None:
        for flag in launch[1].unread:
            print(f"not understood: {flag}", file=sys.stderr)
        return job_of_launch_file(*launch, on, "", [])
    if on:
        raise Mistake(f"--on is {on!r}, but {file} is a job and names its cluster; --nodes may give it more nodes.")
    return load_job(file)


def asked_by(job: "Job", nodes: int | None, fix: list[str] | None) -> "Question":
    """Everything of the job but its layout; its own nodes are the most, unless more are offered."""
    from trimaran.planner.question import Question, fixed_of, with_nodes

    return Question(
        model=job.model,
        cluster=with_nodes(job.cluster, nodes),
        trainer=job.trainer,
        batch=job.batch,
        precision=job.precision,
        optimizer=job.optimizer,
        fixed=fixed_of(fix or []),
    )


def with_yours(asked: "Question", chosen: "Choices", rows: list[list[str]], yours: "Compared") -> list[list[str]]:
    """The table with the job's own layout in its place, or at the end."""
    from trimaran.cli.plan import YOURS, as_row

    for i, row in enumerate(rows):
        if chosen.found.layout(i) == yours.job.layout:
            return [*rows[:i], [*row[:-1], f"{row[-1]} {YOURS}".strip()], *rows[i + 1 :]]
    row = as_row(asked, record_of(asked, yours), best=False)
    row[-1] = f"{row[-1]} {YOURS}".strip() + ("" if yours.fits else ", does not fit")
    place = int((chosen.found.score < yours.pair.found.score[1]).sum())
    return [*rows[:place], row, *rows[place:]]


def record_of(asked: "Question", yours: "Compared") -> dict[str, Any]:
    from trimaran.cli.plan import record

    return {
        **record(asked, yours.pair, 1),
        **yours.job.layout.to_dict(),
        "rank": yours.rank,
        "feasible": yours.feasible,
        "fits": yours.fits,
        "more_than_best": yours.more,
        "tie": yours.tie,
        "difference": yours.difference,
        "warnings": yours.job.warnings(),
    }


def tell(yours: "Compared") -> None:
    from trimaran.cli.show import console

    out, pair = console(), yours.pair
    seconds, low, high = (float(values[1]) for values in (pair.found.seconds, pair.interval.low, pair.interval.high))
    said = f"[bold]Yours.[/] {seconds:.2f} s ({low:.1f} to {high:.1f})"
    if not yours.fits:
        gib, device = float(pair.found.memory_gib[1]), yours.job.cluster.device
        said += f", if it fitted: it needs {gib:.1f} GiB, and {device.name} has {device.memory_gib:g}"
    if yours.same:
        said += f", the best of {yours.feasible:,} layouts that fit."
    else:
        said += f", number {yours.rank:,} of {yours.feasible:,} layouts that fit, {_more(yours)} than the best;"
        said += f" {yours.difference}."
    if yours.tie and not yours.same and yours.more > 0:
        said += " It is a tie: the difference is within what the cost model can tell."
    out.print(said, highlight=False)
    for warning in yours.job.warnings():
        out.print(f"Warning: {warning}", highlight=False)


def _more(yours: "Compared") -> str:
    return f"{yours.more:.1%} more" if yours.more >= 0 else f"{-yours.more:.1%} less"
