"""trimaran explain: where the memory and the time of one layout go."""

import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from trimaran.cli.options import JobArgument
from trimaran.cli.show import JsonOption, console, print_json
from trimaran.planner.explain import MEMORY_LABELS, PART_LABELS
from trimaran.planner.explain import explain as explain_job
from trimaran.planner.timeline import Span, idle_share
from trimaran.processes.command import SettingsOption
from trimaran.spec import Job
from trimaran.spec.settings import load_job_with

BAR = 40
MOST_ROWS = 16  # stages drawn; of more, the first and last ones
COLOURS = {"forward": "cyan", "backward": "green", "weights": "yellow"}


def explain(
    job: JobArgument,
    settings: SettingsOption = None,
    micro_batches: Annotated[
        int | None, typer.Option("--micro-batches", min=1, help="Micro batches to draw; else 4 more than stages.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show where the memory of each stage and the time of a step go, and the pipeline's timeline.

    Example: `trimaran explain examples/jobs/bloom-176b.yaml`
    """
    read = load_job_with(job, settings or [])
    for warning in read.warnings():
        print(f"trimaran: warning: {warning}", file=sys.stderr)
    made = explain_job(read)
    answer = made.to_dict()
    spans, drawn = made.pipeline(micro_batches)
    if json:
        timeline = [{"stage": s.stage, **s.work._asdict(), "start": s.start, "end": s.end} for s in spans]
        print_json({**answer, "timeline": {"micro_batches": drawn, "spans": timeline}})
        return
    _print(read, answer)
    _draw(read, spans, drawn, answer["bubble"])


def _print(job: Job, answer: dict[str, Any]) -> None:
    out, gib = console(), 2**30
    layout = job.layout
    cut = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}, micro batch {layout.micro_batch}, ZeRO {layout.zero}"
    out.print(Text.assemble((job.name, "bold"), f": {cut}, recompute {layout.recompute}, {layout.schedule}"))
    fullest = max(stage["total"] for stage in answer["memory_bytes"].values()) / gib
    without = " without the fragments, which are given back" if fullest > answer["device_gib"] else ""
    verdict = (f"fits{without}", "") if answer["fits"] else ("does not fit", "red")
    room = f"{fullest:.1f} GiB on the fullest stage, of {answer['device_gib']:g}: "
    out.print(Text.assemble("\n", ("Memory", "bold"), f" of a device by stage, GiB. {room}", verdict, "."))
    for stage, parts in answer["memory_bytes"].items():
        out.print(f"  {'only' if layout.pp == 1 else stage} stage, {parts['total'] / gib:.1f}", highlight=False)
        for name, meaning in MEMORY_LABELS.items():
            share = parts[name] / gib / answer["device_gib"]
            _bar(out, meaning, parts[name] / gib, share, "magenta")
    seconds = answer["seconds"]
    spread = f"80 % interval {answer['seconds_low']:.2f} to {answer['seconds_high']:.2f}"
    limited = f" of a step, {seconds:.2f} s ({spread}); limited by {answer['limited_by']}."
    out.print(Text.assemble("\n", ("Time", "bold"), limited))
    for name, value in answer["time_seconds"].items():
        _bar(out, PART_LABELS[name], value, value / seconds, "blue")


def _bar(out: Any, name: str, value: float, share: float, colour: str) -> None:
    if value < 0.005 and share < 0.0005:
        return
    eighths = round(min(share, 1) * BAR * 8)
    bar = "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])
    out.print(Text.assemble(f"    {name:<30}{value:>9.2f} {share:>6.1%} ", (bar, colour)))


def _draw(job: Job, spans: list[Span], drawn: int, bubble: float) -> None:
    """A line a stage, a character a moment: what it does then."""
    if job.layout.pp == 1:
        return
    out, pp = console(), job.layout.pp
    width, whole = out.width - 10, max(span.end for span in spans)
    some = (
        f"{drawn} of {job.micro_batches} micro batches" if drawn < job.micro_batches else f"all {drawn} micro batches"
    )
    waits = f"stages wait {idle_share(spans, pp):.0%} of it ({bubble:.1%} bubble in the whole step)"
    out.print(Text.assemble("\n", ("Pipeline", "bold"), f", {some}, {whole:.2f} s: {waits}"))
    shown = range(pp) if pp <= MOST_ROWS else [*range(MOST_ROWS // 2), *range(pp - MOST_ROWS // 2, pp)]
    for stage in shown:
        if pp > MOST_ROWS and stage == pp - MOST_ROWS // 2:
            out.print(f"      … {pp - MOST_ROWS} more stages")
        line = [("·", "dim")] * width
        for span in spans:
            if span.stage == stage:
                cells = range(int(span.start / whole * width), max(1, int(span.end / whole * width)))
                line[cells.start : cells.stop] = [(_letter(span), COLOURS[span.work.pass_])] * len(cells)
        out.print(Text(f"stage {stage:>2} ") + Text.assemble(*line), no_wrap=True)
    out.print("digits forward, letters the same micro batch backward, w weight gradients, · waiting", style="dim")


def _letter(span: Span) -> str:
    place = span.work.micro_batch % 10
    return {"forward": "0123456789"[place], "backward": "abcdefghij"[place], "weights": "w"}[span.work.pass_]
