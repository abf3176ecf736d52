"""How fast is the planner? `python benchmarks/planner.py`

Layouts per second on one core with seconds and memory predicted for every one, the wall time of the whole command in
fresh processes, and the peak memory of a search over millions of layouts. Calculon, measured by the project on the same
kind of search, evaluates 45 to 276 configurations per second.
"""

import statistics
import subprocess
import sys
import time

LAYOUTS_PER_SECOND_GOAL = 500_000
COMMAND_SECONDS_GOAL = 1.0
PEAK_BYTES_GOAL = 1e9
MANY = 5_000_000
RUNS = 5
COMMAND = "plan bloom-176b --on jean-zay-a100-80gb --nodes 48 --gbs 2048"

PEAK = """
import resource
from trimaran.planner.question import Question, make_batch, with_nodes
from trimaran.planner.ranking import search
from trimaran.spec import presets
question = Question(presets.model("sc21-1t"), with_nodes(presets.cluster("selene"), 256), presets.trainer("trimaran"),
                    make_batch(3072), "bf16")
found = search(question)
print(found.counts.considered - found.counts.refused, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def rate() -> tuple[int, float]:
    """Layouts costed, and the seconds that took: enumeration, time and memory of every one of them."""
    from trimaran.cost.predict import predict
    from trimaran.planner.candidates import blocks
    from trimaran.planner.question import Question, make_batch
    from trimaran.spec import presets

    question = Question(
        presets.model("bloom-176b"),
        presets.cluster("jean-zay-a100-80gb"),
        presets.trainer("trimaran"),
        make_batch(2048),
        "bf16",
    )
    layouts, start = 0, time.perf_counter()
    for block in blocks(question):
        predict(block.columns, question.cluster, question.trainer)
        layouts += int(block.allowed.sum())
    return layouts, time.perf_counter() - start


def command_seconds() -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(
            (sys.executable, "-m", "trimaran.cli.main", *COMMAND.split()), check=True, stdout=subprocess.DEVNULL
        )
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    runs = [rate() for _ in range(RUNS)]
    layouts = runs[0][0]
    per_second = layouts / statistics.median(seconds for _, seconds in runs)
    print(f"time and memory of {layouts:,} layouts: {per_second:,.0f} a second (goal: {LAYOUTS_PER_SECOND_GOAL:,})")
    seconds = command_seconds()
    print(f"trimaran {COMMAND}: {seconds:.2f} s with start-up (goal: under {COMMAND_SECONDS_GOAL:g} s)")
    start = time.perf_counter()
    answer = subprocess.run((sys.executable, "-c", PEAK), check=True, capture_output=True, text=True).stdout.split()
    many, peak = int(answer[0]), int(answer[1])
    took = time.perf_counter() - start
    goal = f"goal: under {PEAK_BYTES_GOAL / 1e6:.0f} MB for {MANY:,}"
    print(f"searching {many:,} layouts: {took:.1f} s, peak {peak / 1e6:.0f} MB ({goal})")
    good = (
        per_second >= LAYOUTS_PER_SECOND_GOAL
        and seconds < COMMAND_SECONDS_GOAL
        and peak < PEAK_BYTES_GOAL
        and many >= MANY
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
