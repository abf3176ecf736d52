"""trimaran report: measurements, predictions and the plan as one HTML page."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from trimaran.cli.options import LedgerOption
from trimaran.cli.show import print_json
from trimaran.ledger.results import parse_filter
from trimaran.ledger.store import Ledger, ledger_path
from trimaran.report import answer
from trimaran.report.campaign import Campaign
from trimaran.report.gather import OnProgress, ledger_campaigns, planned_campaigns, published_campaigns, sweep_campaigns
from trimaran.spec import Mistake
from trimaran.spec.files import check_folder_of, load_job, write_text
from trimaran.spec.mistake import require_package


def report(
    where: Annotated[
        list[str] | None, typer.Argument(help="Only trials that match: size=181B 'tp>=4', as in `results`.")
    ] = None,
    sweep: Annotated[Path | None, typer.Option("--sweep", help="Only the trials of the sweep in this folder.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="The BigScience, Fugaku and Megatron-LM campaigns that ship with it.")
    ] = False,
    job: Annotated[str, typer.Option("--job", help="A job file or preset that was not run yet: its plan.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Also write every figure as SVG and PNG, and its rows as CSV, to this folder."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: the files written, and the answers.")] = False,
    ledger: LedgerOption = "",
) -> None:
    """Write one HTML file: the answer first, all trials, figures, failures, audit findings, and how to reproduce it.

    It works offline and prints well. Rows are corrected where the audit says so, with the prediction beside each.

    Example: `trimaran report --published -o gallery.html`, or `trimaran report --sweep sweeps/layouts --figures slides`
    """
    asked = {"conditions": where, "--sweep": sweep, "--published": published, "--job": job}
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise Mistake(f"A report takes one of them, but {' and '.join(given)} were given; keep one.")
    check_folder_of(output)
    for package in ("plotly", "jinja2", "kaleido"):
        require_package(package, "A report", "report")
    from trimaran.report.figures import draw_figures
    from trimaran.report.page import render_page

    with Console(stderr=True).status("reading") as status:

        def show(text: str) -> None:
            status.update(Text(text))  # a plain string would be read as markup

        campaigns, title, origin = _gather(where or [], sweep, published, job, ledger, show)
        drawn = []
        for campaign in campaigns:
            show(f"drawing {campaign.name}")
            drawn.append((campaign, draw_figures(campaign)))
        text = render_page(title, drawn, origin)
        written = []
        if figures is not None:
            from trimaran.report.images import write_figures

            show("rendering pictures")
            prefixes = [f"{number}-" if len(drawn) > 1 else "" for number in range(1, len(drawn) + 1)]
            pairs = [(prefix, each) for prefix, (_, some) in zip(prefixes, drawn, strict=True) for each in some]
            written = write_figures(figures, pairs)
        write_text(output, text)
    _conclude(campaigns, output, written, json)


def _gather(
    where: list[str], sweep: Path | None, published: bool, job: str, ledger: str, on_progress: OnProgress
) -> tuple[list[Campaign], str, str]:
    """The campaigns, the page's title, and when and from what it was made."""
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if published:
        title = "Published tuning campaigns, with Trimaran's predictions"
        return published_campaigns(on_progress), title, f"{at}, from the measurements that ship with Trimaran"
    if job:
        return planned_campaigns(load_job(job), on_progress), f"The plan for {job}", f"{at}, by the planner"
    path = ledger_path(ledger)
    with Ledger.read(path) as store:
        if sweep is not None:
            origin = f"{at}, from {sweep} and {path}"
            return sweep_campaigns(sweep, store, on_progress), f"The sweep {sweep.name}", origin
        filters = [parse_filter(text) for text in where]
        only = f", trials with {' '.join(where)}" if where else ""
        return ledger_campaigns(store, filters, on_progress), "Measured trials", f"{at}, from {path}{only}"


def _conclude(campaigns: list[Campaign], output: Path, written: list[Path], json: bool) -> None:
    if json:
        answers = [_answer(campaign) for campaign in campaigns]
        print_json({"report": str(output), "figures": [str(path) for path in written], "campaigns": answers})
        return
    if len(campaigns) == 1:
        _print_answer(campaigns[0])
    else:
        for campaign in campaigns:
            print(f"{campaign.name}: {len(campaign.rows)} trials; {_fastest(campaign)}")
    if written:
        print(f"{len(written)} figure files in {written[0].parent}.")
    print(f"Written to {output}.")


def _answer(campaign: Campaign) -> dict[str, Any]:
    winner = campaign.winner
    return {
        "campaign": campaign.name,
        "trials": len(campaign.rows),
        "best": winner.trial.id if winner else None,
        "layout": answer.headline(winner) if winner else None,
        "seconds": winner.seconds if winner else None,
        "predicted": winner.predicted.seconds if winner and winner.predicted else None,
        "why": answer.reasons(campaign),
        "sure": answer.confidence(campaign),
        "next": answer.suggestion(campaign),
    }


def _print_answer(campaign: Campaign) -> None:
    measured = campaign.winner is not None and campaign.winner.seconds is not None
    nothing = "no untried layout is predicted to be faster." if measured else "measure the first few of them."
    print(f"Of {len(campaign.rows)} {'trials' if measured else 'layouts'} {_fastest(campaign)}.")
    print(f"How certain: {' '.join(answer.confidence(campaign))}")
    print(f"Next: {answer.suggestion(campaign) or nothing}")


def _fastest(campaign: Campaign) -> str:
    winner = campaign.winner
    if winner is None:
        return "none has a time"
    measured = f"{winner.seconds:.4g} s" if winner.seconds else ""
    predicted = f"predicted {winner.predicted.seconds:.4g} s" if winner.predicted else ""
    return f"the fastest is {answer.headline(winner)}: {', '.join(word for word in (measured, predicted) if word)}"
