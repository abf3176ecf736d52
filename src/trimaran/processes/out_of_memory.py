"""What PyTorch, NCCL, Python, the kernel and SLURM print when memory runs out.

Used for exceptions of our own ranks, for the output of a trial, and for imported logs.
"""

import re

# Cheap tests first: nearly every line of a log has none of these, and the pattern costs ten times as much.
WORDS = (
    *("ut of memory", "Out Of Memory", "OutOfMemory", "MemoryError"),
    *("oom", "allocate memory", "memory limit", "ALLOC_"),
)
# A message begins its line or follows 'SomethingError: '; the name of a folder follows a slash, a title goes on.
_PATTERN = re.compile(
    r"(?:^|[:\]>-]\s+)(?:\w+ )?(?:error: )?[Oo]ut of memory(?=[.,;:!(]|\s*$| at | on | while | when )"
    r"|(?<![\w/-])(?:\w+\.)*(?:OutOfMemoryError|_?(?:Array)?MemoryError)(?=:|\(|\s*$)"
    r"|\bRank \d+ is out of memory:"  # our own trainer
    r"|\bfailure (?:\d+ )?'out of memory'"  # NCCL
    r"|(?<![\w/])(?:can't|Cannot) allocate memory\b"  # PyTorch's CPU allocator, the system
    r"|\bCU(?:BLAS|DNN)_STATUS_ALLOC_FAILED\b"
    r"|\boom[-_]kill event"  # SLURM, by cgroup
    r"|\btask [\d,-]+: Out Of Memory\s*$"
    r"|\b[Ee]xceeded (?:job |step )?memory limit\b",
    re.MULTILINE,
)


def is_out_of_memory(text: str) -> bool:
    return any(word in text for word in WORDS) and _PATTERN.search(text) is not None
