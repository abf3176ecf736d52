"""Where PyTorch caches compiled kernels. It runs what it finds there, so nobody else may be able to write it."""

import os
import stat
from contextlib import suppress
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def make_private(folder: Path) -> bool:
    """Make the folder where it is missing, and say whether it is one that only this user can write."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
