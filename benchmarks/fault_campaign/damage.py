"""damage: files of the newest checkpoint are overwritten with noise, cut, emptied, removed, or one byte is flipped.

Survived, with an older whole checkpoint: training resumes from that, names the damaged one, and prints the losses of
an undisturbed run. Without one: exit code 2 and a sentence that names the file, before any iteration. A description
without which the checkpoint is still whole (the losses are those of an undisturbed run) may be missing. `sample`
and `weights export` refuse likewise, or take the older one and say so; no exported folder is left by a refusal.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from fault_campaign.campaign import Attempt, Campaign
from fault_campaign.checkpoints import (
    EVERY,
    NEWER,
    STATE,
    Saved,
    as_if_undisturbed,
    copy,
    descriptions,
    export_weights,
    files,
    refusal,
    resume,
    sample,
    save,
    shards,
)
from fault_campaign.programs import Ended

NOISE_BYTES = 4096
Damage = Callable[[Path, Random], Path]  # of a checkpoint; returns the file that was damaged


def noise(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(shards(checkpoint))
    at = rng.randrange(max(1, file.stat().st_size - NOISE_BYTES))
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(rng.randbytes(NOISE_BYTES))
    return file


def truncated(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(shards(checkpoint))
    with file.open("r+b") as opened:
        opened.truncate(rng.randrange(1, file.stat().st_size))
    return file


def emptied(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(shards(checkpoint))
    file.write_bytes(b"")
    return file


def removed(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(shards(checkpoint))
    file.unlink()
    return file


def damaged_description(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(descriptions(checkpoint))
    text = file.read_bytes()
    middle = len(text) // 2
    file.write_bytes(text[:middle] + rng.randbytes(64) + text[middle + 64 :])
    return file


def removed_description(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(descriptions(checkpoint))
    file.unlink()
    return file


def damaged_state(checkpoint: Path, rng: Random) -> Path:
    file = checkpoint / STATE
    file.write_text(rng.choice(["", "{", "[]", "null", '{"position": 3}', file.read_text()[:-40], "\x00" * 100]))
    return file


def removed_state(checkpoint: Path, rng: Random) -> Path:
    (checkpoint / STATE).unlink()
    return checkpoint / STATE


def empty_folder(checkpoint: Path, rng: Random) -> Path:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    return checkpoint / STATE


def flipped(checkpoint: Path, rng: Random) -> Path:
    file = rng.choice(files(checkpoint))
    text = bytearray(file.read_bytes())
    text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    file.write_bytes(text)
    return file


DAMAGES: dict[str, tuple[Damage, int]] = {
    "4 KiB of noise in a shard": (noise, 4),
    "a truncated shard": (truncated, 2),
    "an empty shard": (emptied, 2),
    "a deleted shard": (removed, 2),
    "damaged metadata": (damaged_description, 2),
    "deleted metadata": (removed_description, 2),
    "a damaged run.json": (damaged_state, 2),
    "no run.json": (removed_state, 2),
    "an empty newer folder": (empty_folder, 2),
    "one flipped bit": (flipped, 4),
}


MAY_BE_HARMLESS = "deleted metadata"
READERS = ((False, sample), (True, export_weights))


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    saved = save(campaign, "tp2×dp2")
    tasks = [
        partial(attempt, campaign, saved, kind, number, with_older, command)
        for kind, (_, at_scale_1) in DAMAGES.items()
        for number in range(campaign.count(at_scale_1))
        for with_older, command in ((True, resume), (False, resume), READERS[number % 2])
    ]
    yield from campaign.in_pairs(tasks)


def attempt(
    campaign: Campaign,
    saved: Saved,
    kind: str,
    number: int,
    with_older: bool,
    command: Callable[[Campaign, Path], Ended],
) -> Attempt:
    rng = campaign.random("damage", kind, number)  # the same damage for all commands
    folder = copy(campaign, saved, with_older)
    file = DAMAGES[kind][0](folder / NEWER, rng)
    ended = command(campaign, folder)
    moment = f"{kind} in {file.name}, {'with' if with_older else 'without'} an older checkpoint"
    if command is resume:
        why = trained_badly(ended, saved, file, with_older, kind == MAY_BE_HARMLESS)
    else:
        why = read_badly(ended, file, kind == MAY_BE_HARMLESS)
        if not why and ended.code == 2 and (folder.parent / f"{folder.name}-exported").exists():
            why = "left an exported folder"
    return Attempt(kind, why, moment, ended.command)


def trained_badly(ended: Ended, saved: Saved, file: Path, with_older: bool, may_be_harmless: bool) -> str:
    if may_be_harmless and not as_if_undisturbed(ended, 2 * EVERY + 1, saved):
        return ""
    if not with_older:
        return refusal(ended, file)
    if why := as_if_undisturbed(ended, EVERY + 1, saved):
        return why
    return "" if NEWER in ended.out + ended.err else f"does not say that {NEWER} is damaged"


def read_badly(ended: Ended, file: Path, may_be_harmless: bool) -> str:
    if ended.code == 0:
        return "" if may_be_harmless or NEWER in ended.err else "read it as if it were whole"
    return refusal(ended, file)
