"""trimaran report: what was measured and predicted, as one page to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.cli.importing import LedgerOption

if TYPE_CHECKING:
    from trimaran.report.campaign import Campaign
    from trimaran.report.gather import Tell


def report(
    where: Annotated[
        list[str] | None, typer.Argument(help="Only trials with such conditions: size=181B 'tp>=4', as in `results`.")
    ] = None,
    sweep: Annotated[Path | None, typer.Option("--sweep", help="The folder of a sweep: only its trials.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="The BigScience, Fugaku and Megatron-LM campaigns that ship along.")
    ] = False,
    job: Annotated[
        str, typer.Option("--job", help="A job file or preset of which nothing was run: its plan alone.")
    ] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Also every figure as SVG and PNG, with its rows as CSV, in a folder."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: what was written, and the answers.")] = False,
    ledger: LedgerOption = "",
) -> None:
    """Write one HTML file: the answer first, every trial, figures, failures, the audit, and how to do it again.

    It works offline and prints well. Rows are corrected where the audit forces it, with the prediction beside each.

    Example: `trimaran report --published -o gallery.html`, or `trimaran report --sweep sweeps/layouts --figures slides`
    """
    from rich.console import Console

    from trimaran.spec import Mistake
    from trimaran.spec.files import write_text
    from trimaran.spec.mistake import require_package

    asked = {"conditions": where, "--sweep": sweep, "--published": published, "--job": job}
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise Mistake(f"A report is about one of them, but {' and '.join(given)} were given; leave out all but one.")
    for package in ("plotly", "jinja2", "kaleido"):
        require_package(package, "A report", "report")
    from trimaran.report.figures import draw_figures
    from trimaran.report.page import page

    with Console(stderr=True).status("reading") as status:
        campaigns, title, made = _asked(where or [], sweep, published, job, ledger, status.update)
        drawn = []
        for campaign in campaigns:
            status.update(f"drawing {campaign.name}")
            drawn.append((campaign, draw_figures(campaign)))
        text = page(title, drawn, made)
        written = []
        if figures is not None:
            from trimaran.report.images import write_figures

            status.update("drawing pictures")
            starts = [f"{number}-" if len(drawn) > 1 else "" for number in range(1, len(drawn) + 1)]
            each = [(start, figure) for start, (_, some) in zip(starts, drawn, strict=True) for figure in some]
            written = write_figures(figures, each)
        write_text(output, text)
    _conclude(campaigns, output, written, json)


def _asked(
    where: list[str], sweep: Path | None, published: bool, job: str, ledger: str, tell: "Tell"
) -> "tuple[list[Campaign], str, str]":
    """The campaigns, the page's title, and where all comes from."""
    from datetime import UTC, datetime

    from trimaran.ledger.results import parse_filter
    from trimaran.ledger.store import Ledger, ledger_path
    from trimaran.report.gather import of_ledger, of_published, of_sweep

    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if published:
        title, source = "Published tuning campaigns, with Trimaran's predictions", "the figures that ship with Trimaran"
        return of_published(tell), title, f"{at}, from {source}"
    if job:
        from trimaran.report.gather import of_job
        from trimaran.spec.files import load_job

        return of_job(load_job(job), tell), f"The plan for {job}", f"{at}, by the planner"
    path = ledger_path(ledger)
    with Ledger.read(path) as store:
        if sweep is not None:
            return of_sweep(sweep, store, tell), f"The sweep {sweep.name}", f"{at}, from {sweep} and {path}"
        conditions = [parse_filter(text) for text in where]
        only = f", trials with {' '.join(where)}" if where else ""
        return of_ledger(store, conditions, tell), "What was measured", f"{at}, from {path}{only}"


def _conclude(campaigns: "list[Campaign]", output: Path, written: list[Path], json: bool) -> None:
    if json:
        from trimaran.cli.show import print_json

        answers = [_answer(campaign) for campaign in campaigns]
        print_json({"report": str(output), "figures": [str(path) for path in written], "campaigns": answers})
        return
    if len(campaigns) == 1:
        _print_answer(campaigns[0])
    else:
        for campaign in campaigns:
            print(f"{campaign.name}: {len(campaign.rows)} trials; {_fastest(campaign)}")
    if written:
        print(f"{len(written)} files of figures in {written[0].parent}.")
    print(f"Written to {output}.")


def _answer(campaign: "Campaign") -> dict[str, Any]:
    from trimaran.report import words

    winner = campaign.winner
    return {
        "campaign": campaign.name,
        "trials": len(campaign.rows),
        "best": winner.trial.id if winner else None,
        "layout": words.headline(winner) if winner else None,
        "seconds": winner.seconds if winner else None,
        "predicted": winner.expected.seconds if winner and winner.expected else None,
        "why": words.why(campaign),
        "sure": words.sure(campaign),
        "next": words.next_step(campaign),
    }


def _print_answer(campaign: "Campaign") -> None:
    """The three lines that matter."""
    from trimaran.report import words

    measured = campaign.winner is not None and campaign.winner.seconds is not None
    nothing = "nothing that was not tried is predicted to be faster." if measured else "measure the first few of them."
    print(f"Of {len(campaign.rows)} {'trials' if measured else 'layouts'} {_fastest(campaign)}.")
    print(f"How sure: {' '.join(words.sure(campaign))}")
    print(f"Next: {words.next_step(campaign) or nothing}")


def _fastest(campaign: "Campaign") -> str:
    from trimaran.report import words

    winner = campaign.winner
    if winner is None:
        return "none ended with a time"
    measured = f"{winner.seconds:.4g} s" if winner.seconds else ""
    predicted = f"predicted {winner.expected.seconds:.4g} s" if winner.expected else ""
    return f"the fastest is {words.headline(winner)}: {', '.join(word for word in (measured, predicted) if word)}"
