"""trimaran probe: measure this machine, and write a cluster file that plans and jobs accept."""

import os
import sys
from contextlib import nullcontext
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from trimaran.cli.probe_compare import compare
from trimaran.cli.probe_show import print_measured, save_plot
from trimaran.cli.progress import progress
from trimaran.cli.show import print_json
from trimaran.probe.result import ProbeResult
from trimaran.processes.command import need_torch
from trimaran.processes.rendezvous import find_rendezvous, is_rank_0
from trimaran.spec import Mistake
from trimaran.spec.files import load_model, save
from trimaran.spec.mistake import require_package

probe = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode="markdown")
probe.command("compare")(compare)


@probe.callback()
def measure(
    context: typer.Context,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the cluster to this file.")] = None,
    model: Annotated[str, typer.Option(help="Whose GEMM shapes to measure: a preset's name or a file.")] = "",
    ranks: Annotated[
        int | None, typer.Option(help="Processes that measure at once; by default one per GPU, or one per core.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Coarse grids: about 20 seconds.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write plots to this HTML file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: everything that was measured.")] = False,
) -> None:
    """Measure this hardware while all ranks are busy, and write a cluster file with its constants and their sources.

    Started by torchrun or srun, the processes measure together, inside nodes and between them.

    Example: `trimaran probe --ranks 8 -o here.yaml`, then `trimaran plan gpt-1b3 --on here.yaml --gbs 64`
    """
    if context.invoked_subcommand:
        return
    try:
        need_torch("trimaran probe")
        _check_files(output, plot)
        measured = _probe(model, ranks, quick)
    except Mistake:
        if is_rank_0(os.environ):
            raise
        raise typer.Exit(2) from None  # rank 0 prints it for all
    if measured is None:
        return
    from trimaran.learn.probed import probed_cluster

    cluster = probed_cluster(measured)
    if output is not None:
        save(cluster, output)
    if plot is not None:
        save_plot(measured, cluster, plot)
    if json:
        print_json({"measured": measured.to_dict(), "cluster": cluster.to_dict()})
        return
    print_measured(measured, cluster)
    if output is not None:
        print(f"Written to {output}; use it with --on {output}.")


def _probe(model: str, ranks: int | None, quick: bool) -> ProbeResult | None:
    """With processes of our own, or those that torchrun or SLURM started."""
    started = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    rendezvous = None if started == "1" else find_rendezvous(os.environ, int(started) if started.isdigit() else 0)
    if rendezvous and ranks not in (None, rendezvous.world_size):
        raise Mistake(f"--ranks is {ranks}, but {rendezvous.world_size} processes were started; leave out --ranks.")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # otherwise a lost rank prints a page of C++ frames

    from trimaran.learn.probed import cpu_machine
    from trimaran.probe.gemm_shapes import default_model
    from trimaran.probe.measure import ProbeOptions
    from trimaran.probe.ranks import ProbeFailed, check_ranks, count_gpus, default_ranks, run_probe

    count = rendezvous.world_size if rendezvous else default_ranks() if ranks is None else ranks
    check_ranks(count, on_one_machine=rendezvous is None)
    if not count_gpus():
        cpu_machine()  # measured before the ranks are busy
    measured_model = load_model(model) if model else default_model(count_gpus() > 0)
    words = [
        "trimaran probe",
        *([f"--ranks {ranks}"] if ranks else []),
        *([f"--model {measured_model.name}"] if model else []),
        *(["--quick"] if quick else []),
    ]
    options = ProbeOptions(measured_model, quick, " ".join(words))
    try:
        with progress(every=inf) if is_rank_0(os.environ) else nullcontext(lambda *_: None) as update:
            return run_probe(count, options, lambda what, share: update(share, 1.0, what), rendezvous)
    except ProbeFailed as failure:
        if str(failure):
            print(f"trimaran: {failure}", file=sys.stderr, flush=True)
        raise typer.Exit(failure.code) from None


def _check_files(output: Path | None, plot: Path | None) -> None:
    """Before two minutes of measuring, not after them."""
    for path in filter(None, (output, plot)):
        if path.is_dir():
            raise Mistake(f"{path} is a directory, not a file.")
        try:
            with TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise Mistake(f"{path} cannot be written: {error.strerror}.") from None
    if output is not None and output.suffix not in (".yaml", ".yml", ".json"):
        raise Mistake(f"A cluster file ends in .yaml or .json, unlike {output}; the nearest: {output.name}.yaml.")
    if plot is not None:
        require_package("plotly", "--plot", "report")
