"""trimaran data: tokenize texts, and show what is in a dataset."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from trimaran.cli.progress import progress
from trimaran.cli.show import JsonOption, print_json, print_table
from trimaran.data.indexed_dataset import open_dataset
from trimaran.data.manifest import read_manifest
from trimaran.data.partial import PrepareState
from trimaran.data.prepare import PrepareOptions
from trimaran.data.prepare import prepare as prepare_dataset
from trimaran.data.tokenizer import Bytes, HuggingFace, Tokenizer, load_tokenizer
from trimaran.processes.command import finite
from trimaran.processes.exit_codes import INTERRUPTED
from trimaran.spec import Mistake

FIRST_TOKENS = 16

data = typer.Typer(
    help="Tokenize texts into Megatron's indexed datasets, and show what is in them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@data.command("prepare")
def prepare(
    inputs: Annotated[list[Path], typer.Argument(help="Text, JSONL (.gz, .zst) and Parquet files, or folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="PREFIX of the files to write.", metavar="PREFIX")],
    tokenizer: Annotated[Path | None, typer.Option(help="A Hugging Face tokenizer.json.")] = None,
    bytes_: Annotated[bool, typer.Option("--bytes", help="Bytes are the tokens; 256 is the end of document.")] = False,
    field: Annotated[str, typer.Option(help="The field or column that holds the text.")] = "text",
    append_eod: Annotated[bool, typer.Option("--append-eod", help="Append an end-of-document token to each.")] = False,
    eod: Annotated[str | None, typer.Option(help="The end-of-document token, if its name is unusual.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip and count records that cannot be read.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")] = False,
    every: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds between saves, and lines of progress.")
    ] = 5.0,
    json: JsonOption = False,
) -> None:
    """Tokenize texts into PREFIX.bin and PREFIX.idx, as Megatron reads them. Interrupted, the same command resumes.

    Exit codes: 0 done (or done before), 2 invalid input, 5 interrupted.

    Example: trimaran data prepare wiki.jsonl.zst -o tokens/wiki --tokenizer tokenizer.json --append-eod
    """
    options = PrepareOptions(
        inputs,
        output,
        tokenizer_from_options(tokenizer, bytes_, eod),
        field=field,
        append_eod=append_eod,
        skip_bad=skip_bad,
        overwrite=overwrite,
        every=every,
    )
    started = time.monotonic()
    resumed_at: list[int] = []  # documents done by an earlier run

    def on_progress(state: PrepareState, total: int) -> None:
        resumed_at[:] = resumed_at or [state.documents]
        rate = (state.documents - resumed_at[0]) / max(time.monotonic() - started, 1e-3)
        text = f"{state.done:,} of {total:,} bytes, {state.documents:,} documents, {rate:,.0f}/s"
        update(state.done, total, text)

    try:
        with progress(every) as update:
            manifest, already = prepare_dataset(options, on_progress)
    except KeyboardInterrupt:
        print("trimaran: interrupted; the same command resumes from here.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - started
    if json:
        head = {"prefix": str(output), "already": already, "seconds": round(seconds, 3)}
        print_json({**head, **asdict(manifest)})
        return
    skipped = [f"{n:,} {what}" for n, what in ((manifest.empty, "empty"), (manifest.bad, "unreadable")) if n]
    print(
        f"{output}: {manifest.documents:,} documents, {manifest.tokens:,} tokens ({manifest.dtype}, vocabulary"
        f" {manifest.vocab:,}) from {manifest.characters / 1e6:,.1f} million characters"
        + (f"; skipped: {' and '.join(skipped)}" if skipped else "")
        + ("; it was prepared before." if already else f"; {seconds:.1f} s.")
    )


@data.command("show")
def show(
    prefix: Annotated[Path, typer.Argument(help="PREFIX of a .bin and .idx file.")],
    json: JsonOption = False,
) -> None:
    """Show a dataset: documents, tokens, lengths, and the beginning of the first document.

    Example: trimaran data show tokens/wiki
    """
    facts = _facts(prefix)
    manifest = facts.pop("record")
    if json:
        print_json({**facts, "record": asdict(manifest) if manifest else None})
        return
    lengths = ", ".join(f"{name} {value:,}" for name, value in facts["lengths"].items())
    rows = [
        ["documents", f"{facts['documents']:,}"],
        ["tokens", f"{facts['tokens']:,} ({facts['dtype']})"],
        ["tokens per document", lengths],
        ["vocabulary", f"{manifest.vocab:,}, end of document {manifest.eod}" if manifest else "unknown"],
        ["first tokens", " ".join(map(str, facts["first_tokens"]))],
        ["as text", repr(facts["first_text"]) if facts["first_text"] is not None else "unknown without a tokenizer"],
    ]
    print_table(str(facts["prefix"]), ["", ""], rows, left=(0, 1))


def _facts(prefix: Path) -> dict[str, Any]:
    dataset = open_dataset(prefix)
    manifest = read_manifest(dataset.prefix)
    lengths = np.diff(dataset.starts)
    shares = {"least": 0, "10 %": 0.1, "half": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1}
    quantiles = np.quantile(lengths if len(lengths) else [0], list(shares.values()), method="nearest")
    first = dataset.document(0)[:FIRST_TOKENS].tolist() if dataset.documents else []
    tokenizer = load_tokenizer(manifest.request.tokenizer) if manifest else None
    return {
        "prefix": str(dataset.prefix),
        "documents": dataset.documents,
        "tokens": len(dataset.tokens),
        "dtype": dataset.tokens.dtype.name,
        "lengths": {name: int(value) for name, value in zip(shares, quantiles, strict=True)},
        "first_tokens": first,
        "first_text": tokenizer.decode(first) if tokenizer else None,
        "record": manifest,
    }


def tokenizer_from_options(file: Path | None, as_bytes: bool, eod: str | None) -> Tokenizer:
    if (file is None) != as_bytes:
        given = "Both --tokenizer and --bytes are" if as_bytes else "Neither --tokenizer nor --bytes is"
        raise Mistake(f"{given} given; one says how text becomes tokens.")
    return Bytes() if file is None else HuggingFace(file, eod)
