"""Ranks forked by a launcher: what they send arrives, and of several failures the cause is reported."""

import subprocess
import sys
from pathlib import Path

from trimaran.processes.heartbeat import STEPPING, read_heartbeats

# A process of its own: ranks are forked, which a process with other threads should not do.
SCRIPT = """
import sys
from datetime import timedelta
from trimaran.processes.ranks import run_ranks
from trimaran.spec import Mistake

def sends(rank):
    rank.send((rank.rank, rank.world_size))
    return 0

def two_failures(rank):
    if rank.rank == 1:
        rank.store.set("failing", "1")
        raise RuntimeError("Connection reset by peer")
    rank.store.wait(["failing"])
    raise ValueError("the cause")

def mistake(rank):
    raise Mistake("The job cannot be trained.")

messages = []
end = run_ranks(2, globals()[sys.argv[1]], timedelta(seconds=60), receive=messages.append)
print(end.code, end.reason, sorted(messages))
"""


def run(main: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, main], capture_output=True, text=True, check=True, timeout=120
    )
    return ended.stdout.strip()


def test_messages_of_all_ranks_arrive() -> None:
    assert run("sends") == "0  [(0, 2), (1, 2)]"


def test_the_cause_is_reported_though_its_consequence_came_first() -> None:
    assert run("two_failures") == "4 Rank 0 failed: ValueError: the cause []"


def test_a_mistake_in_a_rank_is_a_bad_job() -> None:
    assert run("mistake") == "2 The job cannot be trained. []"


def test_a_watchdog_reads_what_a_rank_wrote_and_ignores_a_damaged_file(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from trimaran.processes.heartbeat import STEPPING, Heartbeat
Heartbeat(Path({str(tmp_path)!r}), 3).beat(STEPPING, 7)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    (tmp_path / "rank-00004.json").write_text('{"rank": 4,')
    (beat,) = read_heartbeats(tmp_path)
    assert (beat["rank"], beat["doing"], beat["iteration"]) == (3, STEPPING, 7)


def test_heartbeats_that_cannot_be_written_are_told_once_and_dropped(tmp_path: Path) -> None:
    script = f"""
import shutil
from pathlib import Path
from trimaran.processes.heartbeat import STEPPING, Heartbeat
heartbeat = Heartbeat(Path({str(tmp_path)!r}) / "beats", 3)
shutil.rmtree(heartbeat.file.parent)
heartbeat.beat(STEPPING, 7)
heartbeat.beat(STEPPING, 8)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    file = tmp_path / "beats" / "rank-00003.json"
    assert ended.stderr == f"trimaran: warning: {file} cannot be written: No such file or directory.\n"


def test_the_supervisors_imports_are_the_standard_library() -> None:
    """It starts in hundredths of a second on any node."""
    script = "import sys; before = set(sys.modules); import trimaran.lab.supervise; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "trimaran"}
