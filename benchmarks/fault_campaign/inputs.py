"""inputs: the fuzzers of the tests, with a longer budget. They feed odd documents to every reader and command.

Survived: each input is read, or refused with a Mistake; nothing is traced back, hangs or fills the memory. A fuzzer is
a module with `fuzz(seed, seconds)`, which returns its failures as sentences. It runs as a process of its own, so that
one that hangs is killed.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from fault_campaign.campaign import HANG_SECONDS, Attempt, Campaign, Skipped

FUZZERS = {"documents and commands": "tests.fuzz.fuzzer", "ledgers": "tests.ledger.fuzz"}
SECONDS = 30.0
RUN = """
import importlib, json, sys
failures = importlib.import_module(sys.argv[1]).fuzz(int(sys.argv[2]), float(sys.argv[3]))
print(json.dumps([str(failure) for failure in failures]))
"""


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    present = {kind: module for kind, module in FUZZERS.items() if is_there(module)}
    for found in campaign.in_pairs(partial(fuzzed, campaign, kind, module) for kind, module in present.items()):
        yield from found
    if missing := sorted(set(FUZZERS.values()) - set(present.values())):
        raise Skipped(f"there is no {' and no '.join(missing)}")


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package
        return False


def fuzzed(campaign: Campaign, kind: str, module: str) -> list[Attempt]:
    seconds = SECONDS * campaign.scale
    words = [sys.executable, "-c", RUN, module, str(campaign.seed), str(seconds)]
    ended = campaign.start_command(words).finish(HANG_SECONDS + 2 * seconds)
    kind = f"{kind}, fuzzed for {seconds:.0f} s"
    command = f"{module}.fuzz({campaign.seed}, {seconds:g})"
    if ended.code != 0:
        why = "hung" if ended.code is None else ended.said
        return [Attempt(kind, why, command=command)]
    failures = json.loads(ended.out.splitlines()[-1])
    return [Attempt(kind, failure[:300], command=command) for failure in failures] or [Attempt(kind)]
