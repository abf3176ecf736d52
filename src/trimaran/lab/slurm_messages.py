"""What SLURM's programs print when it is SLURM, and not the trial, that failed.

Only the standard library, as in everything that the supervisor imports.
"""

import re

UNREACHABLE = "SLURM's controller does not answer"
NODE_MISSING = "Required node not available"
STEP_REFUSED = "Unable to create step for job"
_CLIENT = r"^(?:s\w+: |slurm_\w+ ).*"  # a line of sbatch, srun, squeue …, not of a trainer
_UNREACHABLE = re.compile(
    _CLIENT + r"(?:Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted"
    r"|Slurm backup controller|Resource temporarily unavailable|Communication (?:connection|receive|send) failure"
    r"|Connection (?:refused|timed out|reset)|Slurm temporarily unable)",
    re.IGNORECASE | re.MULTILINE,
)
_FAILED_NODE = re.compile(r"Node failure on (\S+?)[.,]?$", re.MULTILINE)
_NODE_FAILURE = re.compile(r"CANCELLED AT \S+ DUE TO NODE FAILURE")
_PREEMPTION = re.compile(r"CANCELLED AT \S+ DUE TO PREEMPTION")
_TIME_LIMIT = re.compile(r"CANCELLED AT \S+ DUE TO TIME LIMIT")


def is_unreachable(text: str) -> bool:
    """Whether a client failed because the controller did not answer, or did not answer in time."""
    return bool(_UNREACHABLE.search(text))


def is_step_refused(text: str) -> bool:
    """As by a controller in its first seconds, when its nodes have not registered yet."""
    return STEP_REFUSED in text


def failed_nodes(text: str) -> set[str]:
    return set(_FAILED_NODE.findall(text))


def why_lost(text: str) -> str:
    """'' where nothing says that SLURM ended the trial, or never started it."""
    if nodes := failed_nodes(text):
        return f"Node {', '.join(sorted(nodes))} failed, or was taken down."
    if _NODE_FAILURE.search(text):
        return "A node of the job failed, or was taken down."
    if _PREEMPTION.search(text):
        return "The job was preempted."
    if NODE_MISSING in text:
        return "A node of the trial is down or drained."
    return f"{UNREACHABLE}, so the trial could not start." if is_unreachable(text) else ""


def is_time_limit(text: str) -> bool:
    return bool(_TIME_LIMIT.search(text))
