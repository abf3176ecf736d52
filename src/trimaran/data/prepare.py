"""Texts to a dataset: read, tokenize and write in batches; an interrupted run is resumed.

A thread tokenizes one batch (without the GIL) while the next is read. Documents are tokenized one by one and written
in the order of the inputs, so the files do not depend on batches, threads or interruptions.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimaran import __version__
from trimaran.data.indexed_dataset import open_dataset, token_dtype
from trimaran.data.inputs import TextBatch, list_inputs, read_batches
from trimaran.data.manifest import Manifest, Request, read_manifest
from trimaran.data.partial import PartialDataset, PrepareState
from trimaran.data.tokenizer import HuggingFace, Tokenizer, append_eod
from trimaran.spec import Mistake

PREFETCH = 2  # batches read ahead of the tokenizer


@dataclass(frozen=True)
class PrepareOptions:
    inputs: Sequence[Path]
    prefix: Path
    tokenizer: Tokenizer
    field: str = "text"
    append_eod: bool = False
    skip_bad: bool = False
    overwrite: bool = False
    every: float = 5.0  # seconds between saves


OnProgress = Callable[[PrepareState, int], None]  # called with the state and the bytes of all inputs


def prepare(options: PrepareOptions, on_progress: OnProgress = lambda state, total: None) -> tuple[Manifest, bool]:
    """Its manifest, and whether it existed already, so that nothing was done."""
    tokenizer = options.tokenizer
    if options.append_eod and isinstance(tokenizer, HuggingFace):
        tokenizer.require_eod()
    inputs = list_inputs(options.inputs)
    request = Request(tokenizer.identity, options.field, options.append_eod, [_input_identity(path) for path in inputs])
    partial = PartialDataset(options.prefix, token_dtype(tokenizer.vocab))
    try:
        state = _resumable(partial, options.overwrite)
        if state is None and not options.overwrite:
            manifest = _finished(options.prefix, request)
            if manifest is not None:
                return manifest, True
        other = state.request.difference(request) if state else ""
        if other and not options.overwrite:
            raise Mistake(
                f"{options.prefix} is partly prepared, but this command asks for {other}; the same command as before"
                " resumes it, --overwrite starts again."
            )
        if state is None or other:
            partial.discard()
            state = PrepareState(request)
        partial.resume(state)
        if not state.finished:
            _write(options, inputs, partial, on_progress)
        done = partial.state
        manifest = Manifest(
            trimaran=__version__,
            request=done.request,
            vocab=tokenizer.vocab,
            eod=tokenizer.eod,
            dtype=partial.dtype.name,
            documents=done.documents,
            tokens=done.tokens,
            characters=done.characters,
            empty=done.empty,
            bad=done.bad,
        )
        partial.finish(manifest)
        return manifest, False
    except OSError as error:
        resumes = " What was written is kept; the same command resumes." if partial.state_path.exists() else ""
        raise Mistake(f"{options.prefix} cannot be written: {error.strerror}.{resumes}") from None
    finally:
        partial.close()


def _resumable(partial: PartialDataset, overwrite: bool) -> PrepareState | None:
    try:
        return partial.load_state()
    except Mistake:
        if not overwrite:
            raise
        return None


def _write(options: PrepareOptions, inputs: list[Path], partial: PartialDataset, on_progress: OnProgress) -> None:
    total = sum(path.stat().st_size for path in inputs)
    saved = time.monotonic()
    on_progress(partial.state, total)
    try:
        for batch, (tokens, sizes) in _tokenize(options, inputs, partial):
            partial.append(tokens, sizes, batch)
            if time.monotonic() - saved >= options.every:
                partial.save()
                saved = time.monotonic()
            on_progress(partial.state, total)
    except BaseException:  # also Ctrl-C: what is written is kept
        partial.keep()
        raise


def _tokenize(
    options: PrepareOptions, inputs: list[Path], partial: PartialDataset
) -> Iterator[tuple[TextBatch, tuple[Any, Any]]]:
    """Batches in order, each tokenized while later ones are read; those before a bad record come before its Mistake."""

    def encode(texts: list[str]) -> tuple[Any, Any]:
        if not texts:
            return np.empty(0, partial.dtype), np.empty(0, np.int64)
        tokens, sizes = options.tokenizer.encode(texts, partial.dtype)
        eod = options.tokenizer.eod
        return append_eod(tokens, sizes, eod) if options.append_eod and eod is not None else (tokens, sizes)

    waiting: deque[tuple[TextBatch, Future[tuple[Any, Any]]]] = deque()
    mistake: Mistake | None = None
    with ThreadPoolExecutor(1) as worker:
        try:
            for batch in read_batches(inputs, options.field, partial.state.place, options.skip_bad):
                waiting.append((batch, worker.submit(encode, batch.texts)))
                if len(waiting) > PREFETCH:
                    done, future = waiting.popleft()
                    yield done, future.result()
        except Mistake as raised:
            mistake = raised
        for done, future in waiting:
            yield done, future.result()
    if mistake is not None:
        raise mistake


def _finished(prefix: Path, request: Request) -> Manifest | None:
    """The manifest of a dataset finished earlier, if it is the one asked for; None where there is none."""
    files = [Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx", ".json")]
    existing = [path for path in files if path.exists()]
    if not existing:
        return None
    manifest = read_manifest(prefix)
    if manifest is None:
        raise Mistake(f"{existing[0]} exists and was not written by this command; --overwrite replaces it.")
    other = manifest.request.difference(request)
    if other:
        raise Mistake(f"{prefix} is prepared already, but this command asks for {other}; --overwrite replaces it.")
    open_dataset(prefix)
    return manifest


def _input_identity(path: Path) -> dict[str, str | int]:
    stat = path.stat()
    return {"file": str(path), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
