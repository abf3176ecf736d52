"""trimaran sample: generate text with a trained model."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from trimaran.cli.data import tokenizer_from_options
from trimaran.cli.progress import copying
from trimaran.cli.show import JsonOption, print_json
from trimaran.cli.weights import need_safetensors
from trimaran.data.tokenizer import Bytes, Tokenizer, find_tokenizer
from trimaran.processes.command import finite
from trimaran.spec import Job, Mistake
from trimaran.spec.bounds import MOST_TOKENS

INCOMPLETE = "\ufffd"  # what the first bytes of a character decode to


def sample(
    source: Annotated[
        Path, typer.Argument(help="A run's saving.folder, one of its steps, or a folder in Hugging Face's format.")
    ],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="How many at most; an end of document stops it.")
    ] = 200,
    temperature: Annotated[float, typer.Option(min=0, callback=finite, help="0: always the most likely token.")] = 0.8,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Sample from so many most likely tokens; 0: from all.")
    ] = 50,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random numbers.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, where none is found.")] = None,
    bytes_: Annotated[bool, typer.Option("--bytes", help="Bytes are the tokens.")] = False,
    json: JsonOption = False,
) -> None:
    """Continue a text with a model, on the CPU. The tokenizer is that of the data it was trained on.

    Example: `trimaran sample checkpoints --prompt "def " --temperature 0.5`
    """
    need_safetensors("trimaran sample")
    from trimaran.engine.model.generate import SamplingOptions, generate, limit_threads, load_model, seeded_generator

    weights, job, folders = open_weights(source)
    text_tokenizer = tokenizer_for(weights.model.vocab, job, folders, tokenizer, bytes_)
    begin = encode_prompt(prompt, text_tokenizer, weights.model.vocab)
    with copying("reading") as on_progress:
        stage = load_model(weights, on_progress)
        if job is not None:
            weights.verify()
    limit_threads(stage)
    options, generator = SamplingOptions(temperature, top_k), seeded_generator(seed)
    started, texts, generated = time.monotonic(), [], 0
    for number in range(count):
        new: list[int] = []
        sampled = generate(stage, begin, options, generator, text_tokenizer.eod)
        for piece in pieces(text_tokenizer, begin, sampled, tokens, new):
            if not json:
                print(piece, end="", flush=True)
        generated += len(new)
        texts.append({"text": text_tokenizer.decode([*begin, *new]), "tokens": new})
        if not json:
            print("\n---" if number + 1 < count else "")
    if json:
        seconds = time.monotonic() - started
        print_json(
            {"prompt": prompt, "prompt_tokens": begin, "samples": texts, "tokens_per_second": generated / seconds}
        )


def open_weights(source: Path) -> tuple[Any, Job | None, tuple[Path, ...]]:
    """The weights, the job that trained them where it is known, and folders that may have a tokenizer."""
    from trimaran.engine.checkpoint.reader import SavedCheckpoint
    from trimaran.engine.hugging_face.folder import HfFolder, is_hf_folder

    if is_hf_folder(source):
        return HfFolder(source), None, (source,)
    saved = SavedCheckpoint(source)
    return saved, saved.job, (saved.path, saved.path.parent)


def tokenizer_for(
    vocab: int, job: Job | None, folders: tuple[Path, ...], file: Path | None, as_bytes: bool
) -> Tokenizer:
    if file is not None or as_bytes:
        return tokenizer_from_options(file, as_bytes, None)
    found = find_tokenizer(job, folders)
    if found is None and vocab <= Bytes().vocab:
        return Bytes()
    if found is None:
        raise Mistake(
            f"The tokenizer of this vocabulary of {vocab} is not known: no data set or tokenizer.json has it, or its"
            " file was removed or changed; give one by --tokenizer, or --bytes."
        )
    return found


def encode_prompt(prompt: str, tokenizer: Tokenizer, vocab: int) -> list[int]:
    """Without a prompt, the text after an end of document."""
    tokens: list[int] = tokenizer.encode([prompt], np.dtype(np.int64))[0].tolist() if prompt else []
    if not tokens and tokenizer.eod is not None:
        tokens = [tokenizer.eod]
    if not tokens:
        raise Mistake("There is nothing to continue: this tokenizer has no end of document; give a --prompt.")
    if max(tokens) >= vocab:
        raise Mistake(
            f"The prompt has the token {max(tokens)}, but the model's vocabulary has {vocab}; is this its tokenizer?"
        )
    return tokens


def pieces(tokenizer: Tokenizer, begin: list[int], sampled: Iterator[int], limit: int, new: list[int]) -> Iterator[str]:
    """The text as it is generated, whole characters at a time; tokens are appended to `new`."""
    shown = 0
    while True:
        text = tokenizer.decode([*begin, *new])
        ended = len(new) == limit or (bool(new) and new[-1] == tokenizer.eod)
        if ended or not text.endswith(INCOMPLETE):
            yield text[shown:]
            shown = len(text)
        if ended:
            return
        new.append(next(sampled))
