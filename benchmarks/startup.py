"""How long does a command take to start? `python benchmarks/startup.py`

Medians over fresh processes, compared with the bare interpreter and a bare typer program in the same run.
"""

import statistics
import subprocess
import sys
import time

GOAL_SECONDS = 0.4
IMPORT_GOAL_SECONDS = 0.3
RUNS = 9
BARE = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"


def median_seconds(*command: str) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    trimaran = (sys.executable, "-m", "trimaran.cli.main")
    print(f"{'bare python':<28}{median_seconds(sys.executable, '-c', 'pass'):6.3f} s")
    print(f"{'a bare typer program, --help':<28}{median_seconds(sys.executable, '-c', BARE, '--help'):6.3f} s")
    print(f"{'trimaran presets':<28}{median_seconds(*trimaran, 'presets'):6.3f} s")
    imported = median_seconds(sys.executable, "-c", "import trimaran")
    print(f"{'import trimaran':<28}{imported:6.3f} s   (goal: under {IMPORT_GOAL_SECONDS} s, python included)")
    seconds = median_seconds(*trimaran, "--help")
    print(f"{'trimaran --help':<28}{seconds:6.3f} s   (goal: under {GOAL_SECONDS} s)")
    return 0 if seconds < GOAL_SECONDS and imported < IMPORT_GOAL_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
