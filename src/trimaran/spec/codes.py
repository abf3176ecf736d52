"""Exit codes of `trimaran train`, for those who start it as a process."""

DONE, BAD_JOB, OUT_OF_MEMORY, RANK_FAILED, INTERRUPTED, NOT_FINITE = 0, 2, 3, 4, 5, 6
