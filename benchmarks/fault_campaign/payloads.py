"""payloads: a checkpoint from somebody else, made to run code or to read files outside of its folder.

Survived: no code ran (the file that it would have made is not there), and the command ended with 2 and a sentence. A
planted file that is no part of the checkpoint, such as a classic `.metadata` beside a format of our own, may also be
ignored: then training prints the losses of an undisturbed run.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from fault_campaign.campaign import Attempt, Campaign
from fault_campaign.checkpoints import (
    EVERY,
    NEWER,
    Saved,
    as_if_undisturbed,
    copy,
    descriptions,
    export_weights,
    resume,
    sample,
    save,
    shards,
)
from fault_campaign.programs import Ended

SUMS = "SHA256SUMS"
CLASSIC = ".metadata"  # of PyTorch's distributed checkpoints: a pickle
Plant = Callable[[Path, Path, Random], bool]  # checkpoint, canary; whether it had to be read


class Call:
    """A pickle that calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def pickles(canary: Path) -> dict[str, bytes]:
    make = f"open({str(canary)!r}, 'w')"
    found = {f"posix.system, protocol {n}": pickle.dumps(Call(os.system, f"touch {canary}"), n) for n in (0, 2, 4)}
    found["builtins.exec"] = pickle.dumps(Call(exec, make), 4)
    found["builtins.eval inside a dict"] = pickle.dumps({"state_dict_metadata": Call(eval, make)}, 4)
    # Of a module that an allow-list may name: pathlib imports os.
    words = f"touch {canary}".encode()
    named = b"\x80\x04\x8c\x07pathlib\x8c\x09os.system\x93\x8c" + bytes([len(words)]) + words + b"\x85R."
    found["pathlib's os.system, a dotted name"] = named
    return found


def plant_pickle(name: str, checkpoint: Path, canary: Path, rng: Random) -> bool:
    """Under every name that describes the checkpoint, and as a classic one."""
    text = pickles(canary)[name]
    named = [file for file in descriptions(checkpoint) if file.name != SUMS]
    for file in named:
        file.write_bytes(text)
    (checkpoint / CLASSIC).write_bytes(text)
    return bool(named)


def plant_sums(checkpoint: Path, canary: Path, rng: Random) -> bool:
    (checkpoint / SUMS).write_bytes(pickles(canary)["posix.system, protocol 2"])
    return False


def renew_sums(checkpoint: Path) -> None:
    """Whoever can replace a file can also replace its digest."""
    sums = checkpoint / SUMS
    if sums.exists():
        others = [file for file in sorted(checkpoint.iterdir()) if file != sums]
        sums.write_text("".join(f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in others))


def plant_beside(checkpoint: Path, canary: Path, rng: Random) -> bool:
    """A classic one only."""
    is_read = (checkpoint / CLASSIC).exists()
    (checkpoint / CLASSIC).write_bytes(pickles(canary)["posix.system, protocol 2"])
    return is_read


def plant_bytes(checkpoint: Path, canary: Path, rng: Random) -> bool:
    """A tensor becomes a bytes entry, which PyTorch's planner reads with torch.load(weights_only=False)."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    described = classic(checkpoint)
    payload = checkpoint / f"__9_0{shards(checkpoint)[0].suffix}"
    torch.save(Call(os.system, f"touch {canary}"), payload)
    for name in list(described.state_dict_metadata):
        described.state_dict_metadata[name] = BytesStorageMetadata()
        for index in [index for index in described.storage_data if index.fqn == name]:
            del described.storage_data[index]
        described.storage_data[MetadataIndex(name)] = _StorageInfo(payload.name, 0, payload.stat().st_size)
    return write_classic(checkpoint, described)


def plant_path(outside: str, checkpoint: Path, canary: Path, rng: Random) -> bool:
    """Tensors are read from a file outside of the checkpoint."""
    shard = shards(checkpoint)[0]
    elsewhere = checkpoint.parent.parent / shard.name
    shutil.copy(shard, elsewhere)
    path = str(elsewhere) if outside == "absolute" else f"../../{shard.name}"
    replaced = False
    for file in descriptions(checkpoint):
        text = file.read_text(errors="surrogateescape")
        if text.lstrip().startswith("{") and json.dumps(shard.name) in text:
            file.write_text(text.replace(json.dumps(shard.name), json.dumps(path)))
            replaced = True
    if not (checkpoint / CLASSIC).exists():
        return replaced
    described = classic(checkpoint)
    for info in described.storage_data.values():
        if info.relative_path == shard.name:
            object.__setattr__(info, "relative_path", path)
    return write_classic(checkpoint, described)


def plant_link(checkpoint: Path, canary: Path, rng: Random) -> bool:
    shard = shards(checkpoint)[0]
    elsewhere = checkpoint.parent.parent / shard.name
    shutil.move(shard, elsewhere)
    shard.symlink_to(elsewhere)
    return True


def classic(checkpoint: Path) -> Any:
    """The checkpoint's own metadata if it is PyTorch's, else that of a small one."""
    import torch
    import torch.distributed.checkpoint as dcp

    if not (checkpoint / CLASSIC).exists():
        dcp.save({"weights/embedding": torch.zeros(3)}, checkpoint_id=checkpoint.parent / "classic", no_dist=True)
        return pickle.loads((checkpoint.parent / "classic" / CLASSIC).read_bytes())
    return pickle.loads((checkpoint / CLASSIC).read_bytes())


def write_classic(checkpoint: Path, described: Any) -> bool:
    """Whether it replaced the one that is read."""
    was_there = (checkpoint / CLASSIC).exists()
    (checkpoint / CLASSIC).write_bytes(pickle.dumps(described, 4))
    return was_there


PLANTS: dict[str, Plant] = {
    **{f"a pickle: {name}": partial(plant_pickle, name) for name in pickles(Path("canary"))},
    "a classic .metadata": plant_beside,
    "a pickle for digests": plant_sums,
    "a bytes entry for torch.load": plant_bytes,
    "an absolute path": partial(plant_path, "absolute"),
    "a path with ..": partial(plant_path, "relative"),
    "a symbolic link for a shard": plant_link,
}
COMMANDS: dict[str, Callable[[Campaign, Path], Ended]] = {
    "train, one rank": resume,
    "train, dp2": partial(resume, layout="dp2"),
    "sample": sample,
    "weights export": export_weights,
}


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    saved = save(campaign)
    rng = campaign.random("payloads")
    pairs = [(plant, command) for plant in PLANTS for command in COMMANDS]
    chosen = pairs if campaign.scale >= 1 else rng.sample(pairs, campaign.count(len(pairs)))
    yield from campaign.in_pairs(partial(attempt, campaign, saved, *pair) for pair in chosen)


def attempt(campaign: Campaign, saved: Saved, plant: str, command: str) -> Attempt:
    folder = copy(campaign, saved, with_older=False)
    canary = folder.parent / "canary"
    is_read = PLANTS[plant](folder / NEWER, canary, campaign.random("payloads", plant))
    if PLANTS[plant] is not plant_sums:
        renew_sums(folder / NEWER)
    ended = COMMANDS[command](campaign, folder)
    why = judge(ended, canary, is_read, saved)
    return Attempt(plant.partition(":")[0], why, f"{plant}, {command}", ended.command)


def judge(ended: Ended, canary: Path, is_read: bool, saved: Saved) -> str:
    if canary.exists():
        return "code from the checkpoint ran"
    if ended.code == 0 and not is_read:
        return as_if_undisturbed(ended, 2 * EVERY + 1, saved) if ended.losses else ""
    if ended.code == 0:
        return "loaded it without a word"
    return ended.not_a_sentence()
