"""Tokenizers: raw bytes, or a tokenizer.json of Hugging Face's `tokenizers`; and which one a model was trained with.

Every document is encoded by itself, without the special tokens that a tokenizer may add around a text; only
--append-eod adds one, the end of document.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimaran.data.indexed_dataset import Ints, dataset_prefix
from trimaran.data.manifest import read_manifest
from trimaran.data.source import SYNTHETIC
from trimaran.spec import Job, Mistake
from trimaran.spec.mistake import import_optional

TOKENIZER_FILE = "tokenizer.json"

# The end-of-document token in published tokenizers: GPT-2 and NeoX, Llama 3, Llama and T5, Gemma, BERT's successors.
EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|eod|>", "<eod>")


class Tokenizer(Protocol):
    vocab: int
    eod: int | None
    identity: dict[str, str]  # as manifests store it

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Ints]:
        """The tokens of all texts, concatenated, and how many each has."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """Tokens 0 to 255 are the bytes of UTF-8, 256 is the end of document."""

    def __init__(self) -> None:
        self.vocab = 257
        self.eod: int | None = 256
        self.identity = {"kind": "bytes"}

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Ints]:
        parts = [text.encode() for text in texts]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8).astype(dtype), sizes

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


class HuggingFace:
    def __init__(self, path: Path, eod: str | None = None) -> None:
        tokenizers = import_optional("tokenizers", "A tokenizer's JSON file", "data")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Mistake(f"The tokenizer {path} cannot be read: {error.strerror}.") from None
        try:
            self.tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the package raises no type of its own
            raise Mistake(f"{path} is not a tokenizer of the package `tokenizers`: {str(error)[:120]}.") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        ids: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise Mistake(f"The tokenizer {path} has no tokens.")
        self.vocab = max(ids.values()) + 1
        if eod is not None and eod not in ids:
            raise Mistake(f"The tokenizer {path} has no token {eod!r}; its special ones are {self._special()}.")
        names = (eod,) if eod is not None else EOD_NAMES
        self.eod = next((ids[name] for name in names if name in ids), None)
        self.identity = {"kind": "tokenizers", "file": str(path), "sha256": hashlib.sha256(content).hexdigest()}
        if eod is not None:
            self.identity["eod"] = eod

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Ints]:
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)  # parallel, without the GIL
        parts = [np.array(each.ids, dtype) for each in encodings]
        return np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def require_eod(self) -> int:
        if self.eod is None:
            raise Mistake(
                "--append-eod needs an end-of-document token, and none of this tokenizer's tokens has a known name"
                f" ({', '.join(EOD_NAMES[:4])}, …): name one of {self._special()} with --eod."
            )
        return self.eod

    def _special(self) -> str:
        added = [str(token.content) for token in self.tokenizer.get_added_tokens_decoder().values()]
        return ", ".join(added[:8]) or "none"


def append_eod(tokens: npt.NDArray[Any], sizes: Ints, eod: int) -> tuple[npt.NDArray[Any], Ints]:
    """An end-of-document token after each document that has tokens."""
    has_tokens = sizes > 0
    return np.insert(tokens, np.cumsum(sizes)[has_tokens], eod), sizes + has_tokens


def load_tokenizer(identity: dict[str, str]) -> Tokenizer | None:
    """The tokenizer that a manifest names; None where its file is gone or changed."""
    if identity.get("kind") == "bytes":
        return Bytes()
    try:
        tokenizer = HuggingFace(Path(identity.get("file", "")), identity.get("eod"))
    except Mistake:
        return None
    return tokenizer if tokenizer.identity == identity else None


def find_tokenizer(job: Job | None, folders: Iterable[Path]) -> Tokenizer | None:
    """That of the data the job trains on, else of a tokenizer.json in one of the folders."""
    identity = tokenizer_identity(job) if job else None
    if identity is not None:
        return load_tokenizer(identity)
    file = next((folder / TOKENIZER_FILE for folder in folders if (folder / TOKENIZER_FILE).is_file()), None)
    return HuggingFace(file) if file else None


def tokenizer_identity(job: Job) -> dict[str, str] | None:
    """From the first dataset with a manifest; those made by Megatron's own tools have none."""
    source = job.data.source
    for path in [source] if isinstance(source, str) else source:
        manifest = read_manifest(dataset_prefix(path)) if path != SYNTHETIC else None
        if manifest is not None:
            return manifest.request.tokenizer
    return None
