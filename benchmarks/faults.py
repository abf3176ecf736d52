"""A campaign of faults: real processes are killed, stopped, starved and lied to, and must lose nothing, let nobody in
and never hang.

    python benchmarks/faults.py [--seed 1] [--only saves,damage] [--scale 1.0] [--json FILE]

About 15 minutes on two idle cores. Prints what was tried, how often and what survived, and for each failure how to
reproduce it; exit code 1 if anything did not survive. Moments are drawn from the seed, but a machine is never the same
twice: a failure may need a few tries. Ctrl-C prints the table so far. Full disks need root, and SLURM Debian's
packages; without them these sections are skipped and say so.
"""

import argparse
import json
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from fault_campaign.campaign import Attempt, Campaign, Skipped
from fault_campaign.programs import Stopped
from trimaran.cli.show import print_table

SECTIONS = (
    "saves",
    "damage",
    "payloads",
    "inputs",
    "injections",
    "harness",
    "hangs",
    "starts",
    "disk",
    "slurm",
    "restarts",
    "other_data",
    "soak",
)
Results = dict[str, list[Attempt]]


def run_section(name: str, campaign: Campaign, found: list[Attempt]) -> str:
    """Appends to `found`; why the rest of the section was skipped, or ''."""
    attempts: Callable[[Campaign], Iterator[Attempt]] = import_module(f"fault_campaign.{name}").attempts
    try:
        for attempt in attempts(campaign):
            found.append(attempt)
            survived = sum(not each.failure for each in found)
            campaign.progress(f"{name}: {survived} of {len(found)} survived; {attempt.kind}")
            if attempt.failure:
                campaign.progress(f"{name}: NOT SURVIVED: {attempt.kind}: {attempt.failure}", every_seconds=0)
    except Skipped as skipped:
        return str(skipped)
    except (KeyboardInterrupt, Stopped):
        raise
    except Exception as error:  # one section that breaks must not hide what the others find
        traceback.print_exc()
        found.append(Attempt("the section itself", f"{type(error).__name__}: {error}"))
    finally:
        campaign.end_all()
    return ""


def print_results(results: Results, skipped: dict[str, str], seed: int, scale: float) -> bool:
    """Whether everything survived."""
    rows, failures = [], []
    for name, found in results.items():
        for kind in dict.fromkeys(attempt.kind for attempt in found):
            tried = [attempt for attempt in found if attempt.kind == kind]
            rows.append((name, kind, str(len(tried)), str(sum(not attempt.failure for attempt in tried))))
        failures += [(name, attempt) for attempt in found if attempt.failure]
        if name in skipped:
            rows.append((name, f"skipped: {skipped[name]}", "0", "0"))
    total = [attempt for found in results.values() for attempt in found]
    rows.append(("", "together", str(len(total)), str(len(total) - len(failures))))
    print_table(f"Faults, seed {seed}, scale {scale:g}", ("section", "what", "tried", "survived"), rows, left=(0, 1))
    for (name, attempt), times in Counter(failures).items():
        print(f"{name}, {attempt.kind}: {attempt.failure}" + f" ({times} times)" * (times > 1))
        details = "; ".join(filter(None, (attempt.moment, attempt.command)))
        print(f"    python benchmarks/faults.py --seed {seed} --scale {scale:g} --only {name}; {details}")
    return not failures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer attempts; restarts and soak: longer")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, help="also write every attempt to this file")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}.")
    results: Results = {}
    skipped: dict[str, str] = {}
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        campaign = Campaign(asked.seed, asked.scale, Path(folder))
        try:
            for name in names:
                campaign.progress(f"{name} begins", every_seconds=0)
                if why := run_section(name, campaign, results.setdefault(name, [])):
                    skipped[name] = why
        except (KeyboardInterrupt, Stopped):
            interrupted = True
        finally:
            campaign.stopping = True
            campaign.end_all()
    survived = print_results(results, skipped, asked.seed, asked.scale)
    if asked.json:
        values = {name: [vars(attempt) for attempt in found] for name, found in results.items()}
        text = json.dumps({"seed": asked.seed, "scale": asked.scale, "skipped": skipped, "sections": values}, indent=1)
        asked.json.write_text(text)
    if interrupted:
        print("Interrupted: the table has what was tried until then.")
    return 0 if survived and not interrupted else 1


if __name__ == "__main__":
    sys.exit(main())
