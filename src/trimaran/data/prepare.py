"""Texts to a data set: read, encode and write in batches, saved now and then, continued after any interruption.

A thread encodes one batch (without the GIL) while the next is read. Documents are encoded one by one and written in
the order of the inputs, so the files do not depend on batches, threads or interruptions.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trimaran import __version__
from trimaran.data.inputs import Batch, batches, found_inputs
from trimaran.data.megatron import token_type
from trimaran.data.record import Record, Request, read_record
from trimaran.data.tokenizer import HuggingFace, Tokenizer, with_ends
from trimaran.data.tokens import open_tokens
from trimaran.data.writing import Partial, State
from trimaran.spec import Mistake

AHEAD = 2  # batches that wait to be encoded


@dataclass(frozen=True)
class Options:
    inputs: Sequence[Path]
    prefix: Path
    tokenizer: Tokenizer
    field: str = "text"
    append_eod: bool = False
    skip_bad: bool = False
    overwrite: bool = False
    every: float = 5.0  # seconds between saves


@dataclass(frozen=True)
class Prepared:
    record: Record
    already: bool = False  # it was there, and nothing was done


Tell = Callable[[State, int], None]  # how far it is, of how many bytes


def prepare(options: Options, tell: Tell = lambda state, total: None) -> Prepared:
    tokenizer = options.tokenizer
    if options.append_eod and isinstance(tokenizer, HuggingFace):
        tokenizer.eod_or_sentence()
    inputs = found_inputs(options.inputs)
    request = Request(tokenizer.described, options.field, options.append_eod, [_stamp(path) for path in inputs])
    partial = Partial(options.prefix, token_type(tokenizer.vocab))
    try:
        state = partial.saved()
        if state is None and not options.overwrite:
            there = _already(options.prefix, request)
            if there is not None:
                return Prepared(there, already=True)
        other = state.request.difference(request) if state else ""
        if other and not options.overwrite:
            raise Mistake(
                f"{options.prefix} is half prepared, but this command asks for {other}; the same command as before"
                " continues it, --overwrite starts anew."
            )
        if state is None or other:
            partial.drop()
            state = State(request)
        partial.begin(state)
        if not state.finished:
            _write(options, inputs, partial, tell)
        record = _record(partial.state, tokenizer, partial.dtype)
        partial.finish(record)
        return Prepared(record)
    finally:
        partial.close()


def _write(options: Options, inputs: list[Path], partial: Partial, tell: Tell) -> None:
    total = sum(path.stat().st_size for path in inputs)
    saved = time.monotonic()
    tell(partial.state, total)
    try:
        for batch, (tokens, sizes) in _encoded(options, inputs, partial):
            now = partial.state
            read = replace(
                now,
                place=batch.place,
                done=batch.done,
                bad=now.bad + batch.bad,
                characters=now.characters + batch.characters,
            )
            partial.append(tokens, sizes, read)
            if time.monotonic() - saved >= options.every:
                partial.save()
                saved = time.monotonic()
            tell(partial.state, total)
    except BaseException:  # also Ctrl-C: what is written counts
        if partial.state.documents:
            partial.save()
        else:
            partial.drop()
        raise


def _encoded(options: Options, inputs: list[Path], partial: Partial) -> Iterator[tuple[Batch, tuple[Any, Any]]]:
    """Batches in order, each encoded while later ones are read; those before a bad record come before its sentence."""

    def encode(texts: list[str]) -> tuple[Any, Any]:
        if not texts:
            return np.empty(0, partial.dtype), np.empty(0, np.int64)
        tokens, sizes = options.tokenizer.encode(texts, partial.dtype)
        eod = options.tokenizer.eod
        return with_ends(tokens, sizes, eod) if options.append_eod and eod is not None else (tokens, sizes)

    waiting: deque[tuple[Batch, Future[tuple[Any, Any]]]] = deque()
    mistake: Mistake | None = None
    source = batches(inputs, options.field, partial.state.place, options.skip_bad)
    with ThreadPoolExecutor(1) as worker:
        while True:
            batch = None
            try:
                batch = next(source, None) if mistake is None else None
            except Mistake as found:
                mistake = found
            if batch is not None:
                waiting.append((batch, worker.submit(encode, batch.texts)))
            while waiting and (batch is None or len(waiting) > AHEAD):
                done, future = waiting.popleft()
                yield done, future.result()
            if batch is None:
                break
    if mistake is not None:
        raise mistake


def _already(prefix: Path, request: Request) -> Record | None:
    """What was finished earlier, if it is what is asked for; None where there is nothing."""
    there = [
        path for path in (prefix.with_name(prefix.name + end) for end in (".bin", ".idx", ".json")) if path.exists()
    ]
    if not there:
        return None
    record = read_record(prefix)
    if record is None:
        raise Mistake(f"{there[0]} exists and was not made by this command; --overwrite replaces it.")
    other = record.request.difference(request)
    if other:
        raise Mistake(f"{prefix} is prepared already, but this command asks for {other}; --overwrite replaces it.")
    open_tokens(prefix)
    return record


def _record(state: State, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Record:
    return Record(
        trimaran=__version__,
        request=state.request,
        vocab=tokenizer.vocab,
        eod=tokenizer.eod,
        dtype=dtype.name,
        documents=state.documents,
        tokens=state.tokens,
        characters=state.characters,
        empty=state.empty,
        bad=state.bad,
    )


def _stamp(path: Path) -> dict[str, str | int]:
    found = path.stat()
    return {"file": str(path), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}
