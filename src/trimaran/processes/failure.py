"""Why a rank failed, as an exit code and a sentence."""

from dataclasses import dataclass

from trimaran.processes.exit_codes import BAD_JOB, OUT_OF_MEMORY, RANK_FAILED
from trimaran.processes.out_of_memory import is_out_of_memory
from trimaran.spec import Mistake

_CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")
_TIMED_OUT = ("Timed out", "timed out", "timeout")


@dataclass(frozen=True)
class RankFailure:
    code: int
    sentence: str
    is_consequence: bool = False  # of another rank's failure, which explains it


def failure_of(error: BaseException, rank: int) -> RankFailure:
    """The first cause in the chain that can be named; PyTorch's pipeline wraps what a stage raises."""
    import torch

    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for cause in reversed(chain):
        text = str(cause)
        line = _first_line(text)
        if isinstance(cause, Mistake):
            return RankFailure(BAD_JOB, text)
        if isinstance(cause, (MemoryError, torch.OutOfMemoryError)) or is_out_of_memory(text):
            return RankFailure(
                OUT_OF_MEMORY, f"Rank {rank} is out of memory: {line or 'the system refused an allocation.'}"
            )
        if "EADDRINUSE" in text or "address already in use" in text:
            return RankFailure(RANK_FAILED, f"The port of the ranks' rendezvous is already in use: {line}")
        if any(words in text for words in _CONNECTION_LOST):
            return RankFailure(RANK_FAILED, f"Rank {rank} lost its connection to another rank, which ended.", True)
        if isinstance(cause, torch.distributed.DistError) and any(words in text for words in _TIMED_OUT):
            return RankFailure(RANK_FAILED, f"Rank {rank} timed out waiting for the other ranks: {line}", True)
    last = chain[-1]
    return RankFailure(RANK_FAILED, f"Rank {rank} failed: {type(last).__name__}: {_first_line(str(last))}")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:400]
