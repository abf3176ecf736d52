"""disk: a file system that becomes full under a run, and one that is full before a command writes.

Survived, telemetry (--metrics, --heartbeats, --tensorboard): all steps are done with the losses of an undisturbed run,
the last checkpoint (on another disk) is complete, and a sentence says what could not be written.
Survived, saving.folder: whether the run ends or goes on, a sentence names the folder, the checkpoints before are
whole, and when there is room again the same command resumes from there and does all steps.
Survived, commands: exit code 2 and a sentence, none of their files under its final name, and with room again the same
command writes files as long as elsewhere; or exit code 0 and these files at once. A ledger on a full disk can be read,
and has the rows it had.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.full_disk import full_disk
from fault_campaign.programs import Ended
from fault_campaign.small_runs import other_losses, small_run, undisturbed

STEPS = 400
EVERY = 50
PUBLISHED = Path(__file__).parents[2] / "src" / "trimaran" / "published"
MEBIBYTES = 16
LEFT_KIBIBYTES = (0, 4, 16, 64)
TEXT = "the text to prepare"
Words = Callable[[Path], list[str]]


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    expected = undisturbed(campaign, small_run(STEPS), STEPS)
    with full_disk(campaign, 1):
        pass  # or everything is skipped
    tasks: list[Callable[[], Attempt]] = []
    for number in range(campaign.count(2)):
        tasks += [
            partial(telemetry, campaign, expected, option, number)
            for option in ("metrics", "heartbeats", "tensorboard")
        ]
        tasks += [partial(saving, campaign, expected, asynchronous, number) for asynchronous in (False, True)]
        tasks += [partial(command, campaign, name, number) for name in COMMANDS]
        tasks.append(partial(ledger, campaign, number))
    yield from campaign.in_pairs(tasks)


def telemetry(campaign: Campaign, expected: dict[int, float], option: str, number: int) -> Attempt:
    rng = campaign.random("disk", option, number)
    with full_disk(campaign, 1) as disk:
        saved = campaign.place("saved")
        at, path = 1 + rng.randrange(100), disk.folder / option
        words = small_run(STEPS, "one rank", f"saving.folder={saved}", f"saving.every={EVERY}")
        program = campaign.start(*words, f"--{option}", str(path))
        program.until_iteration(at, HANG_SECONDS)
        disk.fill()
        ended = program.finish(HANG_SECONDS)
        why = other_losses(ended.losses.items(), expected)
        if ended.code != 0:
            why = "hung" if ended.code is None else f"exit code {ended.code}, said {ended.said!r}"
        elif len(ended.losses) != STEPS:
            why = f"{len(ended.losses)} of {STEPS} steps were done"
        elif not any(saved.glob(f"step-*{STEPS}")):
            why = "the last checkpoint is missing"
        elif option not in ended.err:
            why = f"no sentence says that {option} could not be written: {ended.said!r}"
        return Attempt(f"full under --{option}", why or ended.bad_words(), f"after iteration {at}", ended.command)


def saving(campaign: Campaign, expected: dict[int, float], asynchronous: bool, number: int) -> Attempt:
    rng = campaign.random("disk", "saving", asynchronous, number)
    with full_disk(campaign, MEBIBYTES) as disk:
        folder = disk.folder / "checkpoints"
        at = 2 * EVERY + rng.randrange(EVERY)
        words = small_run(STEPS, "one rank", f"saving.folder={folder}", f"saving.every={EVERY}")
        words += ["--set", f"saving.asynchronous={str(asynchronous).lower()}"]
        program = campaign.start(*words)
        program.until_iteration(at, HANG_SECONDS)
        disk.fill()
        first = program.finish(HANG_SECONDS)
        disk.empty()
        again = campaign.run(*words)
        why = saved_badly(first, again, expected)
        kind = f"full under saving.folder, {'a' * asynchronous}synchronous"
        return Attempt(kind, why, f"after iteration {at}", first.command)


def saved_badly(first: Ended, again: Ended, expected: dict[int, float]) -> str:
    if first.code is None or again.code is None:
        return "hung"
    if why := first.bad_words():
        return why
    if "checkpoints" not in first.err:
        return f"does not name the folder: {first.said!r}"
    if again.code != 0:
        return f"with room again: exit code {again.code}, said {again.said!r}"
    begun = min(again.losses, default=STEPS + 1)
    if begun <= EVERY:
        return f"with room again it began at iteration {begun}"
    return other_losses([*first.losses.items(), *again.losses.items()], expected)


def export_words(folder: Path) -> list[str]:
    return ["export", "tiny", "--to", "megatron-deepspeed", "-o", str(folder / "launch")]


def report_words(folder: Path) -> list[str]:
    return ["report", "--published", "-o", str(folder / "report.html")]


def prepare_words(folder: Path) -> list[str]:
    return ["data", "prepare", TEXT, "--bytes", "-o", str(folder / "tokens")]


COMMANDS: dict[str, Words] = {"export": export_words, "report": report_words, "data prepare": prepare_words}


def command(campaign: Campaign, name: str, number: int) -> Attempt:
    with full_disk(campaign, MEBIBYTES) as disk:
        left = campaign.random("disk", name, number).choice(LEFT_KIBIBYTES)
        elsewhere = campaign.place("elsewhere")
        wanted_by = campaign.run(*with_text(COMMANDS[name](elsewhere), elsewhere))
        if wanted_by.code != 0:
            raise RuntimeError(f"{wanted_by.command}: {wanted_by.err}")
        wanted = lengths(elsewhere)
        words = with_text(COMMANDS[name](disk.folder), elsewhere)
        disk.fill(1024 * left)
        ended = campaign.run(*words)
        why = "" if ended.code == 0 else ended.not_a_sentence()
        if not why and ended.code == 2 and (there := wanted.keys() & lengths(disk.folder).keys()):
            why = f"left an incomplete {min(there)}"
        disk.empty()
        if not why and ended.code == 2 and (again := campaign.run(*words)).code != 0:
            why = f"with room again: exit code {again.code}, said {again.said!r}"
        if not why and (other := differing(wanted, lengths(disk.folder))):
            why = f"{other} is not complete"
        return Attempt(f"full under {name}", why, f"with {left} KiB left", ended.command)


def with_text(words: list[str], folder: Path) -> list[str]:
    """The input of `data prepare` lies beside the files that it writes elsewhere."""
    text = folder.parent / "text.txt"
    if not text.exists():
        text.write_text((PUBLISHED / "published.csv").read_text() * 20)
    return [str(text) if word == TEXT else word for word in words]


def lengths(folder: Path) -> dict[str, int]:
    """Of the files, by their names inside the folder; hidden ones are not final."""
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith((".partial", ".tmp"))
    }


def differing(wanted: dict[str, int], there: dict[str, int]) -> str:
    """A page has dates and times in it, so a hundredth of its length is not compared."""
    return next((name for name, size in wanted.items() if abs(there.get(name, 0) - size) > 0.01 * size), "")


def ledger(campaign: Campaign, number: int) -> Attempt:
    with full_disk(campaign, 2) as disk:
        file, left = disk.folder / "lab.sqlite", campaign.random("disk", "ledger", number).choice(LEFT_KIBIBYTES)
        begun = campaign.run("import", str(PUBLISHED / "published.csv"), "--ledger", str(file))
        if begun.code != 0:
            raise RuntimeError(f"{begun.command}: {begun.err}")
        rows = row_count(campaign, file)
        disk.fill(1024 * left)
        more = campaign.run("import", str(PUBLISHED / "vtrain_single_node_a100.csv"), "--ledger", str(file))
        why = "" if more.code == 0 else more.not_a_sentence()
        now = row_count(campaign, file)
        if now < 0:
            why = why or "cannot be read on a full disk"
        elif more.code == 2 and now != rows:
            why = why or f"had {rows} rows and has {now} after a refused import"
        return Attempt("a ledger on a full disk", why, f"with {left} KiB left", more.command)


def row_count(campaign: Campaign, ledger: Path) -> int:
    """-1 where it cannot be read."""
    ended = campaign.run("results", "--json", "--ledger", str(ledger))
    return len(json.loads(ended.out)) if ended.code == 0 else -1
