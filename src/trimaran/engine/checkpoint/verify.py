"""`trimaran train JOB --verify`: which checkpoints of a folder are whole. Without torch."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from trimaran.cost.memory import GIB
from trimaran.engine.checkpoint.digests import damaged_file, read_sums
from trimaran.engine.checkpoint.folder import DamagedError, complete_checkpoints, parse_state, read_state
from trimaran.spec import Mistake


def verify_folder(folder: Path) -> None:
    """Prints a line for each, from the oldest on; a Mistake where the newest is damaged, or there is none."""
    checkpoints = complete_checkpoints(folder)
    if not checkpoints:
        raise Mistake(f"{folder} holds no complete checkpoint (step-00000100 or so).")
    whole = [path for path in checkpoints if is_whole(path)]
    if checkpoints[-1] not in whole:
        fallback = f"a run would resume from {whole[-1].name}" if whole else "none is left to resume from"
        raise Mistake(f"The newest checkpoint, {checkpoints[-1]}, is damaged; {fallback}.")


def is_whole(path: Path) -> bool:
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name, total=size)
        damage, count = damage_of(path, lambda read: bar.advance(task, read))
    verified = f"whole, {count} files" if count else "read, but it has no digests (saved by an earlier version)"
    print(f"{path.name}: {f'damaged, {damage}' if damage else verified}, {size / GIB:.3g} GiB")
    return damage is None


def damage_of(path: Path, on_bytes: Callable[[int], object]) -> tuple[str | None, int]:
    """What is wrong with it, and how many files have a digest."""
    try:
        parse_state(read_state(path))
        sums = read_sums(path)
    except DamagedError as why:
        return str(why), 0
    return damaged_file(path, sums.items(), on_bytes), len(sums)
