"""Checkpoints to damage: of the small model, saved by real runs, copied for every attempt."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from fault_campaign.campaign import Campaign
from fault_campaign.programs import Ended
from fault_campaign.small_runs import other_losses, small_run, undisturbed

EVERY = 2
STEPS = 6  # of the run that resumes: from step 4, or from step 2 where step 4 is not whole
OLDER, NEWER = "step-00000002", "step-00000004"
STATE = "run.json"


@dataclass(frozen=True)
class Saved:
    """A run's saving.folder with the checkpoints OLDER and NEWER, and what it prints when nobody disturbs it."""

    folder: Path
    losses: dict[int, float]


def save(campaign: Campaign, layout: str = "one rank") -> Saved:
    folder = campaign.place("saved")
    ended = campaign.run(*small_run(2 * EVERY, layout, f"saving.folder={folder}", f"saving.every={EVERY}"))
    if ended.code != 0:
        raise RuntimeError(f"no checkpoint could be made: {ended.err}")
    for read in (sample, export_weights):  # otherwise a refusal below would mean nothing
        if (ended := read(campaign, folder)).code != 0:
            raise RuntimeError(f"a whole checkpoint is refused: {ended.err}")
    return Saved(folder, undisturbed(campaign, small_run(STEPS), STEPS))


def copy(campaign: Campaign, saved: Saved, with_older: bool) -> Path:
    folder = campaign.place("damaged") / "checkpoints"
    shutil.copytree(saved.folder, folder)
    if not with_older:
        shutil.rmtree(folder / OLDER)
    return folder


def shards(checkpoint: Path) -> list[Path]:
    """The files that hold tensors, whatever the format calls them."""
    named = [file for file in files(checkpoint) if file.suffix in (".distcp", ".safetensors", ".bin", ".pt")]
    return named or [max(files(checkpoint), key=lambda file: file.stat().st_size)]


def descriptions(checkpoint: Path) -> list[Path]:
    """The files that say where which tensor is, and digests; not the run's state."""
    return [file for file in files(checkpoint) if file not in shards(checkpoint) and file.name != STATE]


def files(checkpoint: Path) -> list[Path]:
    return sorted(file for file in checkpoint.iterdir() if file.is_file())


def resume(campaign: Campaign, folder: Path, layout: str = "one rank") -> Ended:
    return campaign.run(*small_run(STEPS, layout, f"saving.folder={folder}", f"saving.every={EVERY}"))


def sample(campaign: Campaign, source: Path) -> Ended:
    return campaign.run("sample", str(source), "--bytes", "--prompt", "a", "--tokens", "4", "--json")


def export_weights(campaign: Campaign, source: Path) -> Ended:
    return campaign.run("weights", "export", str(source), str(source.parent / f"{source.name}-exported"))


def refusal(ended: Ended, named: Path) -> str:
    """Why this is not a refusal that names the file or its checkpoint; '' where it is."""
    if why := ended.not_a_sentence():
        return why
    if ended.losses:
        return "refused after it had trained"
    return (
        ""
        if named.name in ended.err or named.parent.name in ended.err
        else f"does not name {named.name}: {ended.said!r}"
    )


def as_if_undisturbed(ended: Ended, first: int, saved: Saved) -> str:
    """Why this run is not one that resumed at `first` and trained as the undisturbed one did."""
    if ended.code != 0:
        return ended.not_a_sentence() or f"ended, said {ended.said!r}"
    if min(ended.losses, default=0) != first:
        return f"began at iteration {min(ended.losses, default=0)}, not {first}"
    return other_losses(ended.losses.items(), saved.losses)
