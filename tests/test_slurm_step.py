"""How a step ended, by lines that SLURM 22.05 printed."""

import pytest

from trimaran.processes.slurm_step import StepEnd, read_step_end

ENDS = {
    "killed": (
        """\
srun: error: s49135n1: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=913501.0
srun: error: s49135n0: task 0: Exited with exit code 4
srun: Force Terminated StepId=913501.0""",
        StepEnd(4, frozenset(), "s49135n1"),
    ),
    "node failure": (
        """\
srun: error: Node failure on s44971n2
srun: error: s44971n0: task 0: Killed""",
        StepEnd(4, frozenset({"s44971n2"}), None),
    ),
    "interrupted, and the others killed": (
        """\
srun: error: s37209n1: task 1: Exited with exit code 5
srun: launch/slurm: _step_signal: Terminating StepId=720901.0
srun: error: s37209n0: task 0: Killed""",
        StepEnd(5, frozenset(), "s37209n1"),
    ),
    "out of memory, after its consequence": (
        """\
srun: error: s37209n0: task 0: Exited with exit code 4
srun: error: s37209n1: task 1: Out Of Memory""",
        StepEnd(3, frozenset(), "s37209n0"),
    ),
    "a mistake that all have": (
        "srun: error: s37209n[0-1]: tasks 0-1: Exited with exit code 2",
        StepEnd(2, frozenset(), "s37209n[0-1]"),
    ),
    "launched in vain": (
        """\
srun: error: Task launch for StepId=864101.0 failed on node s38641n1: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted""",
        StepEnd(4, frozenset({"s38641n1"}), None),
    ),
    "no controller": (
        "srun: error: Unable to confirm allocation for job 8641: Unable to contact slurm controller (connect failure)",
        StepEnd(4, frozenset(), None),
    ),
}


@pytest.mark.parametrize(("lines", "end"), ENDS.values(), ids=ENDS)
def test_sruns_lines_say_how_a_step_ended(lines: str, end: StepEnd) -> None:
    assert read_step_end(lines.splitlines()) == end
