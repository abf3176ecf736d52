"""soak: 2,000 steps with an asynchronous save every 50: nothing may grow.

Survived: all steps are done, and each rank has at the end at most 2 open files, 1 thread and 24 MiB of resident
memory more than at step 200 (the allocator of one run in this time moves by less than 10 MiB).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign
from fault_campaign.programs import forked
from fault_campaign.small_runs import small_run

EVERY, FROM = 50, 200
STEPS = {"one rank": 2000, "dp2": 500}
MORE_FILES, MORE_THREADS, MORE_MIB = 2, 1, 24.0
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Usage:
    files: int
    threads: int
    mib: float


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    for layout, at_scale_1 in STEPS.items():
        steps, folder = max(2 * FROM, campaign.count(at_scale_1)), campaign.place("soak")
        saving = (f"saving.folder={folder}", f"saving.every={EVERY}", "saving.asynchronous=true")
        program = campaign.start(*small_run(steps, layout, *saving))
        program.until_iteration(FROM, HANG_SECONDS)
        pids = [program.pid, *forked(program.pid)]
        early = [usage(pid) for pid in pids]
        # The last one before the end: a process that is ending has closed its files.
        late = early
        while not program.until_iteration(steps - 5, 0.2) and program.process.poll() is None:
            campaign.progress(f"soak: {layout}, iteration {program.follow()} of {steps}")
            late = [usage(pid) for pid in pids]
        ended = program.finish(HANG_SECONDS)
        found = [(one, other) for one, other in zip(early, late, strict=True) if one and other]
        growth = "; ".join(filter(None, (grown(one, other) for one, other in found)))
        if ended.code != 0 or len(ended.losses) != steps:
            growth = f"exit code {ended.code}, {len(ended.losses)} of {steps} steps, said {ended.said!r}"
        elif not found:
            growth = "no process could be measured"
        yield Attempt(f"{steps:,} steps, {layout}", growth, "", ended.command)


def usage(pid: int) -> Usage | None:
    folder = Path("/proc") / str(pid)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        counts = (len(list((folder / name).iterdir())) for name in ("fd", "task"))
        return Usage(*counts, pages * PAGE_BYTES / 2**20)
    except OSError:
        return None


def grown(early: Usage, late: Usage) -> str:
    more = (late.files - early.files, late.threads - early.threads, late.mib - early.mib)
    if more[0] <= MORE_FILES and more[1] <= MORE_THREADS and more[2] <= MORE_MIB:
        return ""
    return f"{more[0]:+d} files, {more[1]:+d} threads, {more[2]:+.1f} MiB since step {FROM}"
