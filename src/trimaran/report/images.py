"""Figures as files: SVG and PNG for slides, and the rows behind them as CSV."""

from collections.abc import Sequence
from pathlib import Path

from trimaran.report.figures import Figure
from trimaran.spec import Mistake
from trimaran.spec.files import write_text

SIZE = {"width": 1280, "height": 720}  # of a slide
SUFFIXES = ("svg", "png")


def write_figures(folder: Path, figures: Sequence[tuple[str, Figure]]) -> list[Path]:
    """`figures`: each with the prefix of its file names. A browser renders them, so one must be installed."""
    import kaleido
    import plotly.graph_objects as go
    from choreographer.errors import ChromeNotFoundError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{folder} cannot be created: {error.strerror}.") from None
    written = []
    for prefix, figure in figures:
        write_text(folder / f"{prefix}{figure.name}.csv", figure.to_csv())
        written.append(folder / f"{prefix}{figure.name}.csv")
    images = []
    for prefix, figure in figures:
        drawn = go.Figure(figure.plot)  # a copy: the page's has a transparent background
        drawn.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin={"t": 130})
        drawn.update_layout(title={"text": figure.title, "x": 0.02, "y": 0.97})
        for suffix in SUFFIXES:
            written.append(folder / f"{prefix}{figure.name}.{suffix}")
            images.append({"fig": drawn, "path": str(written[-1]), "opts": {"format": suffix, **SIZE}})
    try:
        kaleido.write_fig_from_object_sync(images)
    except ChromeNotFoundError:
        raise Mistake(
            f"The CSV files are in {folder}, but rendering pictures needs a browser and none was found:"
            " install chromium or Google Chrome, or run `kaleido_get_chrome`."
        ) from None
    return written
