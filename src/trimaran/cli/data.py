"""trimaran data: make data sets of texts, and look into them."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trimaran.data.tokenizer import Tokenizer
    from trimaran.data.writing import State

INTERRUPTED = 5  # as in `trimaran train`: what was done is kept
FIRST_TOKENS = 16

data = typer.Typer(
    help="Prepare token files in Megatron's format, and look into them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@data.command("prepare")
def prepare(
    inputs: Annotated[list[Path], typer.Argument(help="Text, JSONL (.gz, .zst) and Parquet files, or folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="PREFIX of the files to make.", metavar="PREFIX")],
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json of Hugging Face's.")] = None,
    bytes_: Annotated[bool, typer.Option("--bytes", help="Bytes are the tokens; 256 is the end of document.")] = False,
    field: Annotated[str, typer.Option(help="The field or column that holds the text.")] = "text",
    append_eod: Annotated[bool, typer.Option("--append-eod", help="An end-of-document token behind each.")] = False,
    eod: Annotated[str | None, typer.Option(help="The tokenizer's end-of-document token, if not known.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out and count what cannot be read.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    every: Annotated[float, typer.Option(min=0, help="Seconds between saves, and lines into a file.")] = 5.0,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Make a data set, PREFIX.bin and PREFIX.idx as Megatron has them, of texts. Interrupted, the same command goes on.

    Exit codes: 0 done (or already there), 2 a mistake of yours, 5 interrupted.

    Example: trimaran data prepare wiki.jsonl.zst -o tokens/wiki --tokenizer tokenizer.json --append-eod
    """
    from trimaran.data import prepare as preparing

    chosen = tokenizer_chosen(tokenizer, bytes_, eod)
    options = preparing.Options(
        inputs, output, chosen, field=field, append_eod=append_eod, skip_bad=skip_bad, overwrite=overwrite, every=every
    )
    started = time.monotonic()
    try:
        with progress(every) as tell:
            made = preparing.prepare(options, tell)
    except KeyboardInterrupt:
        print("trimaran: interrupted; the same command goes on from here.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    seconds, record = time.monotonic() - started, made.record
    if json:
        from dataclasses import asdict

        from trimaran.cli.show import print_json

        print_json({"prefix": str(output), "already": made.already, "seconds": round(seconds, 3), **asdict(record)})
        return
    left_out = [f"{n:,} {what}" for n, what in ((record.empty, "empty"), (record.bad, "unreadable")) if n]
    print(
        f"{output}: {record.documents:,} documents, {record.tokens:,} tokens ({record.dtype}, vocabulary"
        f" {record.vocab:,}) of {record.characters / 1e6:,.1f} million characters"
        + (f"; left out: {' and '.join(left_out)}" if left_out else "")
        + ("; it was there already." if made.already else f"; {seconds:.1f} s.")
    )


@data.command("show")
def show(
    prefix: Annotated[Path, typer.Argument(help="PREFIX of a .bin and .idx file.")],
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What is in a data set: documents, tokens, lengths, and how the first document begins.

    Example: trimaran data show tokens/wiki
    """
    from dataclasses import asdict

    from trimaran.cli.show import print_json, print_table

    facts = facts_of(prefix)
    record = facts.pop("record")
    if json:
        print_json({**facts, "record": asdict(record) if record else None})
        return
    lengths = ", ".join(f"{name} {value:,}" for name, value in facts["lengths"].items())
    rows = [
        ["documents", f"{facts['documents']:,}"],
        ["tokens", f"{facts['tokens']:,} ({facts['dtype']})"],
        ["tokens a document", lengths],
        ["vocabulary", f"{record.vocab:,}, end of document {record.eod}" if record else "not known"],
        ["the first tokens", " ".join(map(str, facts["first_tokens"]))],
        ["that is", repr(facts["first_text"]) if facts["first_text"] is not None else "not known without a tokenizer"],
    ]
    print_table(str(facts["prefix"]), ["", ""], rows, left=(0, 1))


def facts_of(prefix: Path) -> dict[str, Any]:
    import numpy as np

    from trimaran.data.record import read_record
    from trimaran.data.tokenizer import tokenizer_of
    from trimaran.data.tokens import open_tokens

    opened = open_tokens(prefix)
    record = read_record(opened.prefix)
    lengths = np.diff(opened.starts)
    shares = {"least": 0, "10 %": 0.1, "half": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1}
    some = lengths if len(lengths) else np.zeros(1, np.int64)
    quantiles = np.quantile(some, list(shares.values()), method="nearest")
    first = opened.document(0)[:FIRST_TOKENS].tolist() if opened.documents else []
    tokenizer = tokenizer_of(record.request.tokenizer) if record else None
    return {
        "prefix": str(opened.prefix),
        "documents": opened.documents,
        "tokens": len(opened.tokens),
        "dtype": opened.tokens.dtype.name,
        "lengths": {name: int(value) for name, value in zip(shares, quantiles, strict=True)},
        "first_tokens": first,
        "first_text": tokenizer.decode(first) if tokenizer else None,
        "record": record,
    }


def tokenizer_chosen(file: Path | None, as_bytes: bool, eod: str | None) -> "Tokenizer":
    from trimaran.data.tokenizer import Bytes, HuggingFace
    from trimaran.spec import Mistake

    if (file is None) != as_bytes:
        given = "Both --tokenizer and --bytes are" if as_bytes else "Neither --tokenizer nor --bytes is"
        raise Mistake(f"{given} given; one says how text becomes tokens.")
    if file is None:
        return Bytes()
    return HuggingFace(file, eod)


@contextmanager
def progress(every: float) -> "Iterator[Callable[[State, int], None]]":
    """A bar on a terminal, else a line now and then; both on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    began = time.monotonic()
    first: list[int] = []  # documents done by an earlier run

    def rate(state: "State") -> float:
        first[:] = first or [state.documents]
        return (state.documents - first[0]) / max(time.monotonic() - began, 1e-3)

    if sys.stderr.isatty():
        columns = (BarColumn(), DownloadColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=None)

            def update(state: "State", total: int) -> None:
                words = f"{state.documents:,} documents, {rate(state):,.0f}/s"
                bar.update(task, completed=state.done, total=total, description=words)

            yield update
        return
    told = began

    def line(state: "State", total: int) -> None:
        nonlocal told
        now, speed = time.monotonic(), rate(state)
        if now - told < every:
            return
        told = now
        print(
            f"{state.done:,} of {total:,} bytes, {state.documents:,} documents, {speed:,.0f}/s",
            file=sys.stderr,
            flush=True,
        )

    yield line
