"""What went wrong in a rank, as an exit code and a sentence; and who of the ranks may say it."""

from dataclasses import dataclass

import torch

from trimaran.spec import Mistake
from trimaran.spec.codes import BAD_JOB, OUT_OF_MEMORY, RANK_FAILED

_NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")
_NO_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")
_WAITED = ("Timed out", "timed out", "timeout")


@dataclass(frozen=True)
class Failure:
    code: int
    sentence: str
    follows: bool = False  # from another rank's failure, which explains it


def failure_of(error: BaseException, rank: int) -> Failure:
    """The first cause in the chain that can be named; PyTorch's pipeline wraps what a stage raises."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for cause in reversed(chain):
        text = str(cause)
        if isinstance(cause, Mistake):
            return Failure(BAD_JOB, text)
        if isinstance(cause, (MemoryError, torch.OutOfMemoryError)) or any(words in text for words in _NO_MEMORY):
            said = _first_line(text) or "the system gave no more."
            return Failure(OUT_OF_MEMORY, f"Rank {rank} is out of memory: {said}")
        if "EADDRINUSE" in text or "address already in use" in text:
            return Failure(RANK_FAILED, f"The port where the ranks should meet is taken: {_first_line(text)}")
        if any(words in text for words in _NO_PEER):
            return Failure(RANK_FAILED, f"Rank {rank} lost its connection to another rank, which ended.", follows=True)
        if isinstance(cause, torch.distributed.DistError) and any(words in text for words in _WAITED):
            return Failure(RANK_FAILED, f"Rank {rank} waited in vain for the others: {_first_line(text)}", follows=True)
    last = chain[-1]
    return Failure(RANK_FAILED, f"Rank {rank} failed: {type(last).__name__}: {_first_line(str(last))}")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:400]
