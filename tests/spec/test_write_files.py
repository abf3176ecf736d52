"""Several files are replaced together or not at all, also on a full disk."""

from pathlib import Path

import pytest

from tests.disks import fill, small_disk
from trimaran.spec import Mistake
from trimaran.spec.files import write_files

PAGE = 4096  # bytes: what such a disk gives out at once


def test_none_of_several_files_is_replaced_when_the_disk_does_not_take_all(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        small, large = disk / "small.sh", disk / "large.json"
        write_files({small: b"old", large: b"old too"})
        fill(disk, leave=2 * PAGE)
        with pytest.raises(Mistake, match=r"large\.json cannot be written: No space left on device\."):
            write_files({small: b"new", large: bytes(3 * PAGE)})
        assert (small.read_bytes(), large.read_bytes()) == (b"old", b"old too")
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "large.json", "small.sh"]
        (disk / "filler").unlink()
        write_files({small: b"new", large: bytes(3 * PAGE)})
        assert (small.read_bytes(), large.stat().st_size) == (b"new", 3 * PAGE)
