"""What must be on the disk before a name says that it is."""

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """A file's content, or which names a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
