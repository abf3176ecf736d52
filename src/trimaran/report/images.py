"""Figures as files: SVG and PNG for slides, and the rows behind them as CSV."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from trimaran.report.figures import Figure
from trimaran.spec import Mistake
from trimaran.spec.files import write_files

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
    contents = {folder / f"{prefix}{figure.name}.csv": figure.to_csv().encode() for prefix, figure in figures}
    # Rendered elsewhere: the browser's files appear before they are complete.
    with TemporaryDirectory() as rendered:
        images = []
        for prefix, figure in figures:
            drawn = go.Figure(figure.plot)  # a copy: the page's has a transparent background
            drawn.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin={"t": 130})
            drawn.update_layout(title={"text": figure.title, "x": 0.02, "y": 0.97})
            for suffix in SUFFIXES:
                path = Path(rendered, f"{prefix}{figure.name}.{suffix}")
                images.append({"fig": drawn, "path": str(path), "opts": {"format": suffix, **SIZE}})
        try:
            for failed in kaleido.write_fig_from_object_sync(images) or ():  # older versions raise it themselves
                raise failed
            contents |= {folder / Path(image["path"]).name: Path(image["path"]).read_bytes() for image in images}
        except ChromeNotFoundError:
            write_files(contents)
            raise Mistake(
                f"The CSV files are in {folder}, but rendering pictures needs a browser and none was found:"
                " install chromium or Google Chrome, or run `kaleido_get_chrome`."
            ) from None
        except OSError as error:
            raise Mistake(f"Pictures cannot be rendered in {gettempdir()}: {error.strerror}.") from None
    write_files(contents)
    return list(contents)
