"""Exit codes of `trimaran train` and `trimaran probe`, for those who start them as processes."""

DONE, BAD_JOB, OUT_OF_MEMORY, RANK_FAILED, INTERRUPTED, NOT_FINITE = 0, 2, 3, 4, 5, 6
