"""FullDisk: a file system of its own (tmpfs) that is filled and emptied at will. Mounting needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fault_campaign.campaign import Campaign, Skipped


class FullDisk:
    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / ".filler"

    def fill(self, left_bytes: int = 0) -> None:
        """Until no more than this is left, in the pages of 4 KiB that tmpfs has."""
        free = os.statvfs(self.folder)
        with suppress(OSError), self.filler.open("ab") as filler:
            filler.write(bytes(max(0, free.f_bavail * free.f_frsize - left_bytes)))
            while not left_bytes:
                filler.write(bytes(1024))
                filler.flush()

    def empty(self) -> None:
        self.filler.unlink(missing_ok=True)


@contextmanager
def full_disk(campaign: Campaign, mebibytes: int) -> Iterator[FullDisk]:
    folder = campaign.place("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        raise Skipped(f"a full disk needs root, to mount a tmpfs ({mounted.stderr.strip()})")
    try:
        yield FullDisk(folder)
    finally:
        # Lazily: a process that is being killed may still have a file open there.
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
