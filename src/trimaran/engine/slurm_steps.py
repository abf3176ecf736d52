"""`trimaran train` in the batch script of a job of several nodes: a step per attempt, on the nodes that work."""

import os
import signal
import sys
from collections.abc import Callable

from trimaran.engine.restarts import Restarts, is_stopped_within, restart_after, saved_iteration, tell
from trimaran.processes.exit_codes import INTERRUPTED, RANK_FAILED
from trimaran.processes.rendezvous import host_names
from trimaran.processes.signals import STOP_SIGNALS
from trimaran.processes.slurm_step import Allocation, StopRequests, run_step
from trimaran.spec import Job, Mistake

JobFor = Callable[[int | None], Job]  # with `layout.dp: auto` for so many devices; None: for those of its cluster


def run_steps(job_for: JobFor, restarts: int) -> int:
    """The exit code of the last attempt. Its tasks run this same command, with the layout of the nodes left."""
    wanted, stops = job_for(None), StopRequests()
    allocation = Allocation(os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"])
    allocated = len(host_names(allocation.listed))
    if fitting_job(job_for, wanted, allocated) is None:
        raise Mistake(
            f"The job {wanted.name} needs {wanted.cluster.nodes} nodes, but the allocation has {allocated};"
            f" give sbatch --nodes={wanted.cluster.nodes}, or set layout.dp=auto."
        )
    attempt = Restarts(restarts, iteration=saved_iteration(wanted.saving.folder))
    while True:
        nodes = allocation.working_nodes()
        job = fitting_job(job_for, wanted, len(nodes))
        if job is None:
            return end_or_requeue(wanted, len(nodes), allocation, restarts)
        if job.layout.dp != wanted.layout.dp:
            fewer = f"dp {job.layout.dp} instead of {wanted.layout.dp}, with the same global batch"
            tell(f"{len(nodes)} of the {allocated} nodes allocated work: {fewer}.")
        code = run_step(step_command(job), nodes[: job.cluster.nodes], job.layout.devices, allocation, stops)
        following = restart_after(code, attempt, job.saving.folder)
        if following is None:
            return code
        attempt = following
        stopped = is_stopped_within(attempt.pause_seconds)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if stopped or stops.count:
            return INTERRUPTED


def fitting_job(job_for: JobFor, wanted: Job, nodes: int) -> Job | None:
    """With `layout.dp: auto` the Job for as many nodes as there are, up to those that it wants."""
    if nodes >= wanted.cluster.nodes:
        return wanted
    try:
        job = job_for(nodes * wanted.cluster.devices_per_node) if nodes else wanted
    except Mistake:  # not even one replica fits
        return None
    return job if job.cluster.nodes <= nodes else None


def end_or_requeue(wanted: Job, nodes: int, allocation: Allocation, restarts: int) -> int:
    need = f"the job {wanted.name} needs {wanted.cluster.nodes} nodes, but only {nodes} of those allocated still work"
    if restarts and allocation.requeue():
        tell(f"{need}; SLURM will run the batch job again.")
    else:
        tell(f"{need}; allocate spare nodes with --no-kill, or set layout.dp=auto.")
    return RANK_FAILED


def step_command(job: Job) -> list[str]:
    """This command, where later options win."""
    cluster = job.cluster
    layout = (f"layout.dp={job.layout.dp}", f"cluster.nodes={cluster.nodes}")
    settings = (*layout, f"cluster.devices_per_node={cluster.devices_per_node}")
    changes = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, *sys.orig_argv[1:], "--restarts", "0", *changes]
