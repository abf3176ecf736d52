"""Which documents are trained on and which are kept for validation: decided before anything is shuffled."""

from typing import Literal

Split = Literal["train", "validation"]


def documents_of(split: Split, count: int, share: float) -> range:
    """The last `share` of the documents is for validation, rounded; training keeps at least one."""
    kept = min(round(count * share), max(count - 1, 0))
    return range(count - kept) if split == "train" else range(count - kept, count)
