"""trimaran memory: the exact bytes of one rank of our own trainer, beside the cost model's prediction."""

from math import inf
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from trimaran.cli.options import JobArgument
from trimaran.cli.progress import progress
from trimaran.cli.show import JsonOption, console, print_json, print_table
from trimaran.cost.columns import columns_of
from trimaran.cost.memory import engine_context_bytes, engine_memory
from trimaran.cost.states import rank_states
from trimaran.engine.command import need_our_trainer
from trimaran.planner.explain import number
from trimaran.processes.command import SettingsOption, need_torch
from trimaran.spec import Job, Mistake
from trimaran.spec.settings import load_job_with

# What each row adds up: the parts of engine.memory.rank_memory, beside the one part of that name of the cost model.
ROWS = {
    "weights": ("of the compute precision", ("weights",)),
    "optimizer": ("states, and fp32 master weights", ("optimizer", "master")),
    "gradients": ("", ("gradients",)),
    "activations": ("kept for the backward pass", ("activations",)),
    "logits": ("a chunk of them, and the gradients of the loss", ("logits",)),
    "working": ("temporaries of the backward pass", ("working",)),
    "buffers": ("batch, communication, the optimizer's own", ("inputs", "other")),
}
GIB = 2**30


def memory(
    job: JobArgument,
    rank: Annotated[int, typer.Option("--rank", help="Which process: tp varies fastest, then dp, then pp.")] = 0,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Show the exact memory of one rank of our trainer by part, beside the cost model's prediction.

    The rank's steps are run on fake tensors, which need no memory, so this works for any layout on any machine. The
    change by torch.compile on a GPU comes from the cost model.

    Example: `trimaran memory gpt-1b3-h200 --set layout.micro_batch=8`
    """
    read = load_job_with(job, settings or [])
    need_our_trainer(read)
    if not 0 <= rank < read.layout.devices:
        raise Mistake(f"There is no rank {rank}: this layout has ranks 0 to {read.layout.devices - 1}.")
    answer = _measure(read, rank)
    if json:
        print_json(answer)
        return
    _print(read, answer)


def _measure(job: Job, rank: int) -> dict[str, Any]:
    need_torch("trimaran memory")
    from trimaran.engine.memory.rank_memory import rank_memory

    with progress(every=inf) as update:
        measured = rank_memory(job, rank, lambda share: update(share, 1.0, f"steps of rank {rank}"))
    predicted = _predicted(job.replace(trainer=job.trainer.replace(compiles=False).to_dict()), rank)
    compiled = sum(_predicted(job, rank).values())
    exact = {name: sum(measured.parts[part] for part in parts) for name, (_, parts) in ROWS.items()}
    context = number(engine_context_bytes(columns_of([job]), job.cluster))
    needed = measured.peak + compiled - sum(predicted.values()) + context
    layout, stages = job.layout, _stages(job, rank)
    return {
        "job": job.name,
        "rank": rank,
        "pp_rank": rank // (layout.dp * layout.tp),
        "dp_rank": rank // layout.tp % layout.dp,
        "tp_rank": rank % layout.tp,
        "stages": [{"stage": stage, "layers": layers} for stage, layers in stages],
        "peak_bytes": measured.peak,
        "predicted_bytes": sum(predicted.values()),
        "predicted_compiled_bytes": compiled,
        "parts_bytes": {name: {"exact": exact[name], "predicted": predicted[name]} for name in ROWS},
        "own_peaks_bytes": measured.own_peaks,
        "context_bytes": context,
        "slack_bytes": job.cluster.slack * sum(exact[name] for name in ("activations", "logits", "working")),
        "needed_bytes": needed,  # fragments are released before memory runs out
        "device_bytes": job.cluster.device.memory_gib * GIB,
        "micro_batches": job.micro_batches,
        "micro_batches_run": measured.micro_batches,
    }


def _predicted(job: Job, rank: int) -> dict[str, float]:
    """By the cost model: states tensor by tensor, the rest as in planning, for this rank's stage."""
    pp, pp_rank = job.layout.pp, rank // (job.layout.dp * job.layout.tp)
    stage = "first" if pp_rank == 0 else "last" if pp_rank == pp - 1 else "middle"
    parts = engine_memory(columns_of([job]), job.cluster, job.trainer, stage, stages_left=float(pp - pp_rank))
    values = {name: float(np.ravel(getattr(parts, name))[0]) for name in ROWS}
    states = rank_states(job, rank)
    block_by_block = job.layout.zero == 3 and job.layout.dp > 1 and pp == 1
    weights = values["weights"] if block_by_block else float(states.weights)
    return values | {"weights": weights, "optimizer": float(states.master + states.optimizer)}


def _stages(job: Job, rank: int) -> list[tuple[int, list[int]]]:
    """The pipeline stages of a rank, with the numbers of their layers."""
    layout, sizes = job.layout, job.stage_layers
    mine = range(rank // (layout.dp * layout.tp), layout.stages, layout.pp)
    return [(stage, list(range(sum(sizes[:stage]), sum(sizes[: stage + 1])))) for stage in mine]


def _print(job: Job, answer: dict[str, Any]) -> None:
    layout, out = job.layout, console()
    cut = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}, micro batch {layout.micro_batch}, ZeRO {layout.zero}"
    out.print(Text.assemble((job.name, "bold"), f": {cut}, recompute {layout.recompute}, {layout.schedule}"))
    where = f"pp {answer['pp_rank']}, dp {answer['dp_rank']}, tp {answer['tp_rank']}"
    stages = " and ".join(_describe_stage(stage, job) for stage in answer["stages"])
    out.print(f"Rank {answer['rank']} of {layout.devices} ({where}) holds {stages}.\n", highlight=False)
    parts = answer["parts_bytes"]
    rows = [(name, *_cells(parts[name]["exact"], parts[name]["predicted"]), ROWS[name][0]) for name in ROWS]
    rows.append(("sum", *_cells(answer["peak_bytes"], answer["predicted_bytes"]), "the peak of a step"))
    change = answer["predicted_compiled_bytes"] - answer["predicted_bytes"]
    if change:
        rows.append(("compiled", f"{change / GIB:+.2f}", "", "", "change by torch.compile, by the cost model"))
    pages = ", and pages partly used" if job.cluster.device.is_gpu else ""
    rows.append(("context", f"{answer['context_bytes'] / GIB:.2f}", "", "", f"of {job.cluster.name}'s devices{pages}"))
    rows.append(("fragments", f"{answer['slack_bytes'] / GIB:.2f}", "", "", "that the allocator may lose"))
    needed, has = answer["needed_bytes"], answer["device_bytes"]
    whole = needed + answer["slack_bytes"]
    verdict = ": does not fit" if needed > has else ": fits without the fragments" if whole > has else ""
    rows.append(("total", f"{whole / GIB:.2f}", "", "", f"of {has / GIB:g} on the device{verdict}"))
    print_table("Memory at the peak, GiB", ("part", "exact", "cost model", "off", "what"), rows, left=(0, 4))
    if answer["micro_batches_run"] < answer["micro_batches"]:
        run, count = answer["micro_batches_run"], answer["micro_batches"]
        out.print(f"{run} of {count} micro batches were run; the others do not change the peak.", style="dim")


def _describe_stage(stage: dict[str, Any], job: Job) -> str:
    layers = stage["layers"]
    span = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else "no layers"
    ends = (", embedding" if stage["stage"] == 0 else "") + (
        ", head" if stage["stage"] == job.layout.stages - 1 else ""
    )
    return f"stage {stage['stage']} ({span}{ends})"


def _cells(exact: float, predicted: float) -> tuple[str, str, str]:
    off = f"{predicted / exact - 1:+.1%}" if exact > 0.01 * GIB else ""
    return f"{exact / GIB:.2f}", f"{predicted / GIB:.2f}", off
