"""Which tokenizer the tokens of a model are of: that of the data it was trained on, or the file that lies beside it."""

from collections.abc import Iterable
from pathlib import Path

from trimaran.data.record import read_record
from trimaran.data.source import SYNTHETIC
from trimaran.data.tokenizer import HuggingFace, Tokenizer, tokenizer_of
from trimaran.data.tokens import prefix_of
from trimaran.spec import Job

FILE = "tokenizer.json"


def tokenizer_found(job: Job | None, folders: Iterable[Path]) -> Tokenizer | None:
    """None where no record and no file names one, or where the record's file is gone or changed."""
    described = described_tokenizer(job) if job else None
    if described is not None:
        return tokenizer_of(described)
    beside = next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
    return HuggingFace(beside) if beside else None


def described_tokenizer(job: Job) -> dict[str, str] | None:
    """As the first data set with a record has it; sets made by Megatron's own tools have none."""
    given = job.data.source
    for path in [given] if isinstance(given, str) else given:
        record = read_record(prefix_of(path)) if path != SYNTHETIC else None
        if record is not None:
            return record.request.tokenizer
    return None
