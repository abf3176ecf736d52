"""Why a rank failed, as an exit code and a sentence."""

import re
from dataclasses import dataclass

from trimaran.processes.exit_codes import BAD_JOB, OUT_OF_MEMORY, RANK_FAILED
from trimaran.processes.hang import collective_that_raised
from trimaran.processes.out_of_memory import is_out_of_memory
from trimaran.spec import Mistake

_CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")
_TIMED_OUT = re.compile("[Tt]imed out|timeout")
_GLOO_TIMED_OUT = re.compile(r"Timed out waiting \d+ms for \w+ operation")  # a plain RuntimeError
_BUILD_PATH = re.compile(r"\[/[^\]]*\.\w+:\d+\] *")  # of the machine that PyTorch was built on


@dataclass(frozen=True)
class RankFailure:
    code: int
    sentence: str
    is_consequence: bool = False  # of another rank's failure, which explains it
    timed_out: bool = False
    killed: bool = False  # by a signal, so that it could not say why
    waits_in: str = ""  # the collective that failed


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
        waits_in = collective_that_raised(cause)
        place = f" in {waits_in}" if waits_in and not isinstance(cause, torch.distributed.DistStoreError) else ""
        if any(words in text for words in _CONNECTION_LOST):
            sentence = f"Rank {rank} lost its connection to another rank, which ended."
            return RankFailure(RANK_FAILED, sentence, True, waits_in=waits_in)
        is_of_torch = isinstance(cause, torch.distributed.DistError) and _TIMED_OUT.search(text)
        if is_of_torch or (isinstance(cause, RuntimeError) and _GLOO_TIMED_OUT.search(text)):
            sentence = f"Rank {rank} timed out waiting for the other ranks{place}: {line.rstrip('.')}."
            advice = "One of them is stopped, stuck, or slower than the timeout."
            return RankFailure(RANK_FAILED, f"{sentence} {advice}", True, timed_out=True, waits_in=waits_in)
    last = chain[-1]
    return RankFailure(RANK_FAILED, f"Rank {rank} failed: {type(last).__name__}: {_first_line(str(last))}")


def _first_line(text: str) -> str:
    return _BUILD_PATH.sub("", text.strip().partition("\n")[0])[:400]
