"""How fast is the ledger with 100,000 trials? Prints each figure beside its goal; exit code 1 if one is missed.

python benchmarks/ledger_store.py [trials]
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from trimaran.ledger.reading import trial_id
from trimaran.ledger.results import results
from trimaran.ledger.store import Filter, Ledger
from trimaran.spec import Outcome, Setup, Source, Trial

INSERT_GOAL_SECONDS = 10.0
QUERY_GOAL_SECONDS = 0.3
MODELS = {"1.3B": (24, 2048, 16), "13B": (40, 5120, 40), "104B": (64, 11600, 80), "176B": (70, 14336, 112)}


def trial(number: int, rng: random.Random) -> Trial:
    size = rng.choice(list(MODELS))
    layers, hidden, heads = MODELS[size]
    dp, tp, pp = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4, 8, 12, 24))
    mbs = rng.choice((1, 2, 4, 8))
    works = rng.random() < 0.85
    seconds = rng.lognormvariate(3, 1) if works else None
    return Trial(
        id=trial_id("benchmark", number),
        setup=Setup(
            framework="megatron-deepspeed",
            device=rng.choice(("a100-80gb", "v100-32gb", "h100-80gb")),
            devices_per_node=8,
            nodes=max(1, dp * tp * pp // 8),
            devices=dp * tp * pp,
            size_label=size,
            layers=layers,
            hidden=hidden,
            ffn_hidden=4 * hidden,
            heads=heads,
            seq_len=2048,
            vocab=50257,
            dp=dp,
            tp=tp,
            pp=pp,
            zero=rng.choice((0, 1)),
            mbs=mbs,
            gbs=mbs * dp * rng.choice((8, 16, 64)),
            recompute="full",
            precision="bf16",
            optimizer="adam",
        ),
        outcome=Outcome(
            status="ok" if works else "oom",
            seconds=seconds,
            iterations=20 if works else None,
            memory_gib=rng.uniform(10, 80),
            tflops=rng.uniform(40, 160) if works else None,
        ),
        source=Source(kind="log", file=f"logs/{number // 100}.txt", line=number % 100 + 1, date="2022-03-11"),
    )


def by(column: str, operator: str, value: str | float) -> Filter:
    return Filter(column, operator, value)


TABLE = ("id", "size_label", "dp", "tp", "pp", "mbs", "gbs", "seconds", "memory_gib", "tflops", "status")
QUERIES: dict[str, Callable[[Ledger], Any]] = {
    "count": lambda ledger: ledger.count(),
    "count of a filter": lambda ledger: ledger.count([by("status", "=", "oom"), by("memory_gib", ">", 70)]),
    "fastest 50 trials": lambda ledger: ledger.trials(limit=50),
    "filter, sort, 50 trials": lambda ledger: ledger.trials(
        [by("device", "=", "a100-80gb"), by("status", "=", "ok"), by("tp", "<=", 4)], order="tflops", limit=50
    ),
    "filter that finds nothing": lambda ledger: ledger.trials([by("size_label", "!=", "no"), by("device", "=", "no")]),
    "table, 50 rows by tflops": lambda ledger: ledger.rows(TABLE, order="tflops", descending=True, limit=50),
    "table, 50 rows per sample": lambda ledger: ledger.rows(
        TABLE, [by("size_label", "=", "176B"), by("nodes", ">=", 8)], order="seconds_per_sample", limit=50
    ),
    "group by tp, pp": lambda ledger: ledger.groups(("tp", "pp")),
    "group by tp, pp of one model": lambda ledger: ledger.groups(("tp", "pp"), [by("size_label", "=", "104B")]),
    "group by tp, pp that worked": lambda ledger: ledger.groups(("tp", "pp"), [by("status", "=", "ok")]),
    "group by tp, mbs, zero": lambda ledger: ledger.groups(("tp", "mbs", "zero"), [by("status", "!=", "oom")]),
    "best per model": lambda ledger: ledger.groups(("size_label", "layers", "hidden")),
    "best per model, device, gbs": lambda ledger: ledger.groups(("layers", "hidden", "device", "gbs")),
    "results, all": lambda ledger: results(ledger, [], limit=40),
    "results size=176B 'tp<=4'": lambda ledger: results(
        ledger, [by("size_label", "=", "176B"), by("tp", "<=", 4)], limit=40
    ),
    "results status=ok --sort tflops": lambda ledger: results(
        ledger, [by("status", "=", "ok")], "tflops", True, limit=40
    ),
    "rows of one log": lambda ledger: ledger.rows(TABLE, [by("source_file", "=", "logs/77.txt")], order="source_line"),
}


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def open_and_query(path: Path, query: Callable[[Ledger], Any]) -> Any:
    with Ledger.read(path) as ledger:
        return query(ledger)


def main(number: int) -> int:
    rng = random.Random(1)
    building, trials = timed(lambda: [trial(index, rng) for index in range(number)])
    print(f"building {number:,} Trial objects: {building:.2f} s (no goal)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "benchmark.sqlite")
        with Ledger.open(path) as ledger:
            insert, added = timed(lambda: ledger.add(trials))
            again, known = timed(lambda: ledger.add(trials))
        assert (added.added, known.known) == (number, number)
        print(f"inserting them: {insert:.2f} s (goal < {INSERT_GOAL_SECONDS:g} s)")
        print(f"adding them again, all known: {again:.2f} s (goal < {INSERT_GOAL_SECONDS:g} s)")
        print(f"file: {path.stat().st_size / 2**20:.0f} MiB")
        times = {}
        for name, query in QUERIES.items():
            times[name] = median(timed(lambda query=query: open_and_query(path, query))[0] for _ in range(3))
            print(f"  {name:30} {times[name] * 1000:6.1f} ms")
    slowest = max(times, key=lambda name: times[name])
    print(f"slowest query, opening included, median of 3: {slowest!r}")
    print(f"  {times[slowest]:.3f} s (goal < {QUERY_GOAL_SECONDS:g} s)")
    good = max(insert, again) < INSERT_GOAL_SECONDS and times[slowest] < QUERY_GOAL_SECONDS
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
