"""Figures as files for slides: a picture as SVG and PNG, and the rows behind it as CSV."""

from collections.abc import Sequence
from pathlib import Path

from trimaran.report.figures import Figure
from trimaran.spec import Mistake
from trimaran.spec.files import write_text

SIZE = {"width": 1280, "height": 720}  # of a slide
SUFFIXES = ("svg", "png")


def write_figures(folder: Path, figures: Sequence[tuple[str, Figure]]) -> list[Path]:
    """`figures`: each with the start of its files' names. A browser draws them, so one must be there."""
    import kaleido
    import plotly.graph_objects as go
    from choreographer.errors import ChromeNotFoundError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{folder} cannot be made: {error.strerror}.") from None
    written = []
    for start, figure in figures:
        write_text(folder / f"{start}{figure.name}.csv", figure.to_csv())
        written.append(folder / f"{start}{figure.name}.csv")
    orders = []
    for start, figure in figures:
        shown = go.Figure(figure.plot)  # a copy: the page's has no background
        shown.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin={"t": 130})
        shown.update_layout(title={"text": figure.title, "x": 0.02, "y": 0.97})
        for suffix in SUFFIXES:
            written.append(folder / f"{start}{figure.name}.{suffix}")
            orders.append({"fig": shown, "path": str(written[-1]), "opts": {"format": suffix, **SIZE}})
    try:
        kaleido.write_fig_from_object_sync(orders)
    except ChromeNotFoundError:
        raise Mistake(
            f"The CSV files are in {folder}, but pictures are drawn by a browser and none is here: install chromium or"
            " Google Chrome, or run `kaleido_get_chrome`."
        ) from None
    return written
