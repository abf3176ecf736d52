"""other data: a run is resumed with another seed, other data, or data of another vocabulary.

Survived: exit code 2 and a sentence that says what differs and names --force, and no iteration; with --force it
resumes. The same data under another path is not other data.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from fault_campaign.campaign import Attempt, Campaign
from fault_campaign.programs import Ended
from fault_campaign.small_runs import small_run


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    folder = campaign.place("data")
    first, other, moved = (prepared(campaign, folder, name) for name in ("first", "other", "first-moved"))
    renumbered = renumber(folder, "first", "renumbered")
    cases = {
        "another seed": [f"data.source={first}", "seed=5"],
        "other data": [f"data.source={other}"],
        "another tokenizer": [f"data.source={renumbered}"],
        "another vocabulary": [f"data.source={first}", "model.vocab=352"],
        "synthetic data": [],
    }
    saved = folder / "checkpoints"
    begun = campaign.run(*resuming(3, saved, f"data.source={first}"))
    if begun.code != 0:
        raise RuntimeError(f"{begun.command}: {begun.err}")
    for kind, settings in cases.items():
        ended = campaign.run(*resuming(5, copied(campaign, saved), *settings))
        yield Attempt(kind, resumed_badly(ended), "", ended.command)
        forced = campaign.run(*resuming(5, copied(campaign, saved), *settings), "--force")
        yield Attempt(f"{kind}, --force", not_resumed(forced), "", forced.command)
    same = campaign.run(*resuming(5, copied(campaign, saved), f"data.source={moved}"))
    yield Attempt("the same data elsewhere", not_resumed(same), "", same.command)


def copied(campaign: Campaign, saved: Path) -> Path:
    return shutil.copytree(saved, campaign.place("copied") / "checkpoints")


def not_resumed(ended: Ended) -> str:
    went_on = ended.code == 0 and min(ended.losses, default=0) == 4
    return "" if went_on else f"exit code {ended.code}, said {ended.said!r}"


def resuming(steps: int, saved: Path, *settings: str) -> list[str]:
    return small_run(steps, "one rank", f"saving.folder={saved}", *settings)


def resumed_badly(ended: Ended) -> str:
    if why := ended.not_a_sentence():
        return why
    if ended.losses:
        return "trained before it refused"
    return "" if "--force" in ended.err else f"does not name --force: {ended.said!r}"


def prepared(campaign: Campaign, folder: Path, name: str) -> Path:
    """Bytes of a text that the first word of the name decides."""
    text = folder / f"{name}.txt"
    text.write_text(f"{name.partition('-')[0]} words, again and again.\n" * 2000)
    ended = campaign.run("data", "prepare", str(text), "--bytes", "-o", str(folder / name))
    if ended.code != 0:
        raise RuntimeError(f"{ended.command}: {ended.err}")
    return folder / name


def renumber(folder: Path, name: str, new: str) -> Path:
    """The same text by a tokenizer with other numbers: every byte is one more."""
    tokens = (folder / f"{name}.bin").read_bytes()
    for file in folder.glob(f"{name}.*"):
        shutil.copy(file, folder / file.name.replace(name, new, 1))
    wide = memoryview(bytearray(tokens)).cast("H")
    for index in range(len(wide)):
        wide[index] += 1
    (folder / f"{new}.bin").write_bytes(wide.tobytes())
    return folder / new
