"""A folder that appears with everything in it, or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from trimaran.spec import Mistake
from trimaran.spec.files import sync_to_disk


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Write into the folder that is yielded; it is renamed to `out` when the block ends without an error. One left by a
    killed process never has the name that was asked for, and is replaced by the next."""
    check_absent(out)
    partial = out.parent / f".{out.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync_to_disk(path)
        partial.rename(out)
        sync_to_disk(out.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Mistake(f"{out} cannot be written: {reason}.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_absent(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        kind = "is not empty" if out.is_dir() else "is a file"
        raise Mistake(f"{out} {kind}, and nothing is overwritten: name a folder that does not exist yet.")
