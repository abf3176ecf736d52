"""Text to tokens: bytes as they are, or a tokenizer of Hugging Face's `tokenizers` in its JSON file.

Every document is encoded by itself, without the special tokens that a tokenizer may add around a text; only
--append-eod adds one, the end of the document.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimaran.data.optional import needed
from trimaran.spec import Mistake

# What published tokenizers call the end of a document: GPT-2 and NeoX, Llama 3, Llama and T5, Gemma, BERT's heirs.
EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|eod|>", "<eod>")

Sizes = npt.NDArray[np.int64]


class Tokenizer(Protocol):
    vocab: int
    eod: int | None
    described: dict[str, str]

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Sizes]:
        """The tokens of all texts, joined, and how many each has."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """Tokens 0 to 255 are the bytes of UTF-8, 256 is the end of a document."""

    def __init__(self) -> None:
        self.vocab = 257
        self.eod: int | None = 256
        self.described = {"kind": "bytes"}

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Sizes]:
        parts = [text.encode() for text in texts]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8).astype(dtype), sizes

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


class HuggingFace:
    def __init__(self, path: Path, eod: str | None = None) -> None:
        tokenizers = needed("tokenizers", "A tokenizer's JSON file")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Mistake(f"The tokenizer {path} cannot be read: {error.strerror}.") from None
        try:
            self.tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # what the package raises has no type of its own
            raise Mistake(f"{path} is no tokenizer of the package `tokenizers`: {str(error)[:120]}.") from None
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
        self.described = {"kind": "tokenizers", "file": str(path), "sha256": hashlib.sha256(content).hexdigest()}
        if eod is not None:
            self.described["eod"] = eod

    def encode(self, texts: Sequence[str], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Sizes]:
        found = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)  # parallel, without the GIL
        parts = [np.array(each.ids, dtype) for each in found]
        return np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def eod_or_sentence(self) -> int:
        if self.eod is None:
            raise Mistake(
                "--append-eod needs a token for the end of a document, and none of this tokenizer's has a known name"
                f" ({', '.join(EOD_NAMES[:4])}, …): name one of {self._special()} by --eod."
            )
        return self.eod

    def _special(self) -> str:
        added = [str(token.content) for token in self.tokenizer.get_added_tokens_decoder().values()]
        return ", ".join(added[:8]) or "none"


def with_ends(tokens: npt.NDArray[Any], sizes: Sizes, eod: int) -> tuple[npt.NDArray[Any], Sizes]:
    """The end of a document behind each that has tokens."""
    longer = sizes + (sizes > 0)
    ends = np.cumsum(longer)[sizes > 0] - 1
    out = np.empty(int(longer.sum()), tokens.dtype)
    inside = np.ones(len(out), bool)
    inside[ends] = False
    out[ends], out[inside] = eod, tokens
    return out, longer


def tokenizer_of(described: dict[str, str]) -> Tokenizer | None:
    """The one that a record names, where it is still what it was."""
    if described["kind"] == "bytes":
        return Bytes()
    try:
        found = HuggingFace(Path(described["file"]), described.get("eod"))
    except Mistake:
        return None
    return found if found.described == described else None
