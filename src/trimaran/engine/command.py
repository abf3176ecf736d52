"""The command line of the engine: `trimaran train JOB`, and `torchrun … -m trimaran.engine JOB`."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cost.columns import columns_of
from trimaran.cost.memory import GIB
from trimaran.cost.parameters import total_parameters
from trimaran.cost.predict import interval, predict
from trimaran.data.source import check_data
from trimaran.engine.restarts import execute_again, first_attempt, restart_after
from trimaran.engine.slurm_steps import run_steps
from trimaran.processes.command import SettingsOption, finite, need_torch
from trimaran.processes.rendezvous import check_restarts, find_rendezvous, is_rank_0, started_processes
from trimaran.processes.slurm_step import in_allocation
from trimaran.spec import Job, Mistake, presets
from trimaran.spec.mistake import require_package
from trimaran.spec.settings import load_job_with


def train(
    job: Annotated[str, typer.Argument(help="A job file, or a preset such as tiny (see `trimaran presets`).")],
    settings: SettingsOption = None,
    steps: Annotated[int | None, typer.Option(help="Iterations to run, instead of the job's.")] = None,
    metrics: Annotated[Path | None, typer.Option(help="Write one JSON record per iteration to this file.")] = None,
    heartbeats: Annotated[
        Path | None, typer.Option(help="Folder for one small file per rank, replaced at every step.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event files.")] = None,
    stop_on_nan: Annotated[
        bool,
        typer.Option("--stop-on-nan", help="Stop at a loss that is not finite, and write its batch and tensors."),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the digests of the checkpoints in saving.folder; train nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Resume although data, seed or vocabulary are not the checkpoint's.")
    ] = False,
    patience: Annotated[
        float,
        typer.Option(min=1, max=10**8, callback=finite, help="Timeout: seconds that a rank waits for the others."),
    ] = 600,
    restarts: Annotated[
        int,
        typer.Option(min=0, help="When a rank dies, resume; at most so often in a row without a newer checkpoint."),
    ] = 0,
) -> None:
    """Train a job: start a process for every device of its layout, step, and print a line for each iteration.

    Exit codes: 0 done, 2 a bad job, 3 out of memory, 4 a rank failed, 5 interrupted, 6 a loss that is not finite.

    Example: trimaran train tiny --set layout.tp=2 --steps 10 --metrics tiny.jsonl
    """
    try:
        changes = [*(settings or []), *([f"steps={steps}"] if steps is not None else [])]
        job_to_run = load_job_with(job, changes, started_processes(os.environ))
        need_our_trainer(job_to_run)
        if verify:
            verify_checkpoints(job_to_run.saving.folder)
            return
        rendezvous = find_rendezvous(os.environ, job_to_run.layout.devices)
        if rendezvous is not None:
            check_restarts(restarts, os.environ)
        elif job_to_run.cluster.nodes > 1 and in_allocation(os.environ):
            raise typer.Exit(run_steps(lambda devices: load_job_with(job, changes, devices), restarts))
        attempt = first_attempt(restarts, job_to_run.saving.folder)
        check_devices(job_to_run)
        check_data(job_to_run)
        check_writable(metrics, heartbeats, tensorboard, job_to_run.saving.folder)
        if is_rank_0(os.environ):
            print_prediction(job_to_run)
        need_torch("trimaran train")
        if tensorboard is not None:
            require_package("tensorboard", "--tensorboard", "tensorboard")
        set_environment(job_to_run)
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # otherwise a lost rank prints a page of C++ frames
        from trimaran.engine.loop.train import TrainOptions, run

        options = TrainOptions(metrics, heartbeats, tensorboard, timedelta(seconds=patience), stop_on_nan, force)
        code = run(job_to_run, options, rendezvous)
        following = restart_after(code, attempt, job_to_run.saving.folder)
        if following is not None:
            code = execute_again(following)
    except Mistake:
        if is_rank_0(os.environ):
            raise
        raise typer.Exit(2) from None  # rank 0 prints it for all
    raise typer.Exit(code)


def verify_checkpoints(folder: str | None) -> None:
    """A line for every checkpoint, from the oldest on; a Mistake where the newest is damaged."""
    from trimaran.engine.checkpoint.verify import verify_folder

    if folder is None:
        raise Mistake("--verify checks the checkpoints of saving.folder, which the job does not set.")
    verify_folder(Path(folder))


def set_environment(job: Job) -> None:
    for name, value in job.environment.items():
        try:
            os.environ[name] = value
        except (ValueError, OSError):  # '', a name with '=', a NUL
            raise Mistake(
                f"The environment variable {name!r} of the job {job.name} cannot be set to {value!r}."
            ) from None


def check_devices(job: Job) -> None:
    """That this machine has the job's devices. Memory is checked with the prediction."""
    if job.cluster.is_local_cpu:
        return
    device, machine = job.cluster.device, presets.cluster("here")
    if machine.device.name != device.name:
        raise Mistake(
            f"The job {job.name} is for {device.name}, but this machine has {machine.device.name};"
            " `--set cluster=here` makes it a job for this machine."
        )
    if job.cluster.nodes == 1 and job.layout.devices > machine.devices:
        raise Mistake(
            f"The job {job.name} needs {job.layout.devices} devices, but this machine has {machine.devices};"
            f" the nearest that works: a layout of {machine.devices}."
        )


def check_writable(metrics: Path | None, *folders: Path | str | None) -> None:
    """Before hours of training, not after them."""
    try:
        if metrics is not None:
            metrics.open("a").close()
        for folder in folders:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"{error.filename} cannot be written: {error.strerror}.") from None


def print_prediction(job: Job) -> None:
    """Print what is about to run, and what the cost model predicts for it."""
    columns, layout, device = columns_of([job]), job.layout, job.cluster.device
    predicted, range_ = predict(columns, job.cluster, job.trainer), interval(columns, job.cluster, job.trainer)
    stages = (predicted.memory.first, predicted.memory.last)
    certain = max(float((stage.weights + stage.gradients + stage.optimizer)[0]) for stage in stages) / GIB
    if certain > device.memory_gib:
        raise Mistake(
            f"The job {job.name} needs {certain:.1f} GiB on a device for weights, gradients and optimizer states alone,"
            f" but {device.name} has {device.memory_gib:.1f}; `trimaran plan` finds layouts that fit."
        )
    for warning in job.warnings():
        print(f"trimaran: warning: {warning}", file=sys.stderr)
    if not predicted.fits[0]:
        print("trimaran: warning: by the prediction this will run out of memory.", file=sys.stderr)
    print(
        f"{job.name}: {total_parameters(job.model) / 1e6:,.1f} million parameters, {job.steps} iterations of"
        f" {job.batch.size} samples; dp {layout.dp} x tp {layout.tp} x pp {layout.pp} on {device.name},"
        f" micro batch {layout.micro_batch}, ZeRO {layout.zero}, {job.precision}, {job.optimizer}"
    )
    print(
        f"Predicted: {float(predicted.seconds[0]):.3g} s an iteration ({float(range_.low[0]):.3g} to"
        f" {float(range_.high[0]):.3g}), {float(predicted.memory_gib[0]):.2f} of {device.memory_gib:.1f} GiB a device",
        flush=True,
    )


def need_our_trainer(job: Job) -> None:
    if job.trainer.name != "trimaran":
        raise Mistake(
            f"The job {job.name} is for {job.trainer.name}, but the engine is our own trainer;"
            " add --set trainer=trimaran, or ask `trimaran explain` for the cost model's prediction."
        )
