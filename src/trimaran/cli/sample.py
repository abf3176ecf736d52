"""`trimaran sample`: text that a trained model makes up, to look at."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.cli.weights import need_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimaran.data.tokenizer import Tokenizer
    from trimaran.spec import Job

UNFINISHED = "\ufffd"  # what the first bytes of a character look like


def sample(
    source: Annotated[
        Path, typer.Argument(help="A run's saving.folder, one of its steps, or a folder in Hugging Face's format.")
    ],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many at most; an end of document ends it.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Of so many likeliest tokens; 0: of all.")] = 50,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the choices.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, where none is found.")] = None,
    bytes_: Annotated[bool, typer.Option("--bytes", help="Bytes are the tokens.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Let a model go on with a text, on the CPU. The tokenizer is that of the data it was trained on.

    Example: `trimaran sample checkpoints --prompt "def " --temperature 0.5`
    """
    need_safetensors("trimaran sample")
    from trimaran.cli.progress import copying
    from trimaran.engine.model.generate import SamplingOptions, generate, limit_threads, load_model, seeded_generator

    held, job, folders = opened(source)
    speaks = tokenizer_for(held.model.vocab, job, folders, tokenizer, bytes_)
    begin = encoded(prompt, speaks, held.model.vocab)
    with copying("reading") as tell:
        stage = load_model(held, tell)
    limit_threads(stage)
    stream, started, texts, made = seeded_generator(seed), time.monotonic(), [], 0
    for number in range(count):
        new: list[int] = []
        drawn = generate(stage, begin, SamplingOptions(temperature, top_k), stream, speaks.eod)
        for piece in pieces(speaks, begin, drawn, tokens, new):
            if not json:
                print(piece, end="", flush=True)
        made += len(new)
        texts.append({"text": speaks.decode([*begin, *new]), "tokens": new})
        if not json:
            print("\n---" if number + 1 < count else "")
    if json:
        from trimaran.cli.show import print_json

        seconds = time.monotonic() - started
        print_json({"prompt": prompt, "prompt_tokens": begin, "samples": texts, "tokens_per_second": made / seconds})


def opened(source: Path) -> tuple[Any, "Job | None", tuple[Path, ...]]:
    """The weights, the job that trained them where it is known, and where a tokenizer may lie."""
    from trimaran.engine.checkpoint.reader import Saved
    from trimaran.engine.hugging_face.folder import Folder, is_theirs

    if is_theirs(source):
        return Folder(source), None, (source,)
    saved = Saved(source)
    return saved, saved.job, (saved.path, saved.path.parent)


def tokenizer_for(
    vocab: int, job: "Job | None", folders: tuple[Path, ...], file: Path | None, as_bytes: bool
) -> "Tokenizer":
    from trimaran.cli.data import tokenizer_from_options
    from trimaran.data.tokenizer import Bytes, find_tokenizer
    from trimaran.spec import Mistake

    if file is not None or as_bytes:
        return tokenizer_from_options(file, as_bytes, None)
    found = find_tokenizer(job, folders)
    if found is None and vocab <= Bytes().vocab:
        return Bytes()
    if found is None:
        raise Mistake(
            f"Which of {vocab} tokens mean which text is not known here, for no data set or tokenizer.json says so, or"
            " its file is gone or changed; name one by --tokenizer, or --bytes."
        )
    return found


def encoded(prompt: str, tokenizer: "Tokenizer", vocab: int) -> list[int]:
    """Without a prompt, what comes after the end of a document."""
    import numpy as np

    from trimaran.spec import Mistake

    tokens: list[int] = tokenizer.encode([prompt], np.dtype(np.int64))[0].tolist() if prompt else []
    if not tokens and tokenizer.eod is not None:
        tokens = [tokenizer.eod]
    if not tokens:
        raise Mistake("There is nothing to go on from: this tokenizer has no end of document; give a --prompt.")
    if max(tokens) >= vocab:
        raise Mistake(
            f"The prompt has the token {max(tokens)}, but the model's vocabulary has {vocab}; is this its tokenizer?"
        )
    return tokens


def pieces(
    tokenizer: "Tokenizer", begin: list[int], drawn: "Iterator[int]", limit: int, new: list[int]
) -> "Iterator[str]":
    """The text as it grows, whole characters at a time; `new` gets the tokens."""
    shown = 0
    while True:
        text = tokenizer.decode([*begin, *new])
        ended = len(new) == limit or (bool(new) and new[-1] == tokenizer.eod)
        if ended or not text.endswith(UNFINISHED):
            yield text[shown:]
            shown = len(text)
        if ended:
            return
        new.append(next(drawn))
