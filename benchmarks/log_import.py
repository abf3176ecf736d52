"""How long does it take to import a log of a million iterations? Goal: under 15 seconds on one core.

    python benchmarks/log_import.py [iterations]

Times what `trimaran import FILE` does: recognise the file, read it, add its trial to a new ledger.
"""

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from trimaran.ledger.recognise import read_file
from trimaran.ledger.store import Ledger

GOAL_SECONDS = 15.0
GLOBAL_BATCH = 2048
SEQUENCE = 2048


def iteration_line(number: int, total: int, rng: random.Random) -> str:
    seconds = rng.gauss(104.5, 0.8)
    samples = number * GLOBAL_BATCH
    fields = [
        f" iteration {number:8d}/{total:8d}",
        f"consumed samples: {samples:12d}",
        f"consumed tokens: {samples * SEQUENCE:12d}",
        f"elapsed time per iteration (s): {seconds:.2f}",
        f"learning rate: {6e-5:.3E}",
        f"global batch size: {GLOBAL_BATCH:5d}",
    ]
    if rng.random() > 0.01:  # a skipped iteration has no loss
        fields.append(f"lm loss: {2.0 + rng.random():.6E}")
    fields += [f"loss scale: {1.0:.1f}", f"grad norm: {rng.random():.3f}", f"num zeros: {0.0:.1f}"]
    if number % 2:
        fields.append(f"params norm: {1000 * rng.random():.3f}")
    fields += [
        f"number of skipped iterations: {0:3d}",
        f"number of nan iterations: {0:3d}",
        f"samples per second: {GLOBAL_BATCH / seconds:.3f}",
        f"TFLOPs: {15680.0 / seconds:.2f}",
    ]
    return "[default7]:" + " | ".join(fields) + " |\n"


def write_log(out: TextIO, iterations: int) -> int:
    """Every tenth iteration is repeated by another rank; memory lines of four ranks and other lines now and then."""
    rng = random.Random(1)
    lines = 0
    for number in range(1, iterations + 1):
        line = iteration_line(number, iterations, rng)
        written = [line]
        if number % 10 == 0:
            written.append(line.replace("[default7]:", "[default3]:"))
        if number % 1000 == 1:
            written += [
                f"[default{rank}]:[Rank {rank}] (after {number} iterations) memory (MB) | allocated: 30000.5 | "
                f"max allocated: 44819.12841796875 | reserved: 45930.0 | max reserved: {45930.0 + rank}\n"
                for rank in range(4)
            ]
        if number % 100 == 0:
            written.append(f"[default0]:saving checkpoint at iteration {number:7d} to /scratch/checkpoints/run\n")
        out.writelines(written)
        lines += len(written)
    return lines


def main() -> int:
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "main_log.txt"
        with path.open("w") as out:
            lines = write_log(out, iterations)
        start = time.perf_counter()
        reading = read_file(path)
        with Ledger.open(Path(folder) / "ledger.sqlite") as ledger:
            ledger.add(reading.trials)
        seconds = time.perf_counter() - start
    outcome = reading.trials[0].outcome
    whole = (outcome.iterations or 0) + (outcome.warmup or 0) == iterations and len(reading.trials) == 1
    in_time = seconds * 1_000_000 <= GOAL_SECONDS * iterations
    verdict = "LINES LOST" if not whole else "met" if in_time else "MISSED"
    print(f"import of a plain text log: {lines:,} lines, {iterations:,} iterations in {seconds:.2f} s")
    print(f"{lines / seconds:,.0f} lines/s; goal {GOAL_SECONDS:.0f} s for a million iterations: {verdict}")
    return 0 if verdict == "met" else 1


if __name__ == "__main__":
    raise SystemExit(main())
