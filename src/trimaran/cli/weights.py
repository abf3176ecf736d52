"""trimaran weights: export a checkpoint to `transformers`, import one from there to train on."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from trimaran.cli.progress import copying
from trimaran.cli.show import JsonOption, print_json
from trimaran.cost.parameters import total_parameters
from trimaran.data.tokenizer import find_tokenizer
from trimaran.processes.command import finite, need_torch
from trimaran.spec.mistake import require_package

GIB = 2**30

weights = typer.Typer(
    help="Export weights to Hugging Face's transformers, and import them from there.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@weights.command("export")
def export(
    checkpoint: Annotated[Path, typer.Argument(help="The saving.folder of a run (its newest checkpoint), or a step.")],
    out: Annotated[Path, typer.Argument(help="The folder to create.")],
    to: Annotated[Literal["hf"], typer.Option("--to", help="The format: hf, Hugging Face's.")] = "hf",
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="Data type of the weights.")] = "fp32",
    shard_gib: Annotated[
        float, typer.Option(min=1e-6, max=1e6, callback=finite, help="Largest size of a file, GiB.")
    ] = 5.0,
    json: JsonOption = False,
) -> None:
    """Write a checkpoint as safetensors and config.json for transformers: GPT-2, BLOOM or Llama. Logits are the same.

    A prefix-LM is written as well: its weights are those of a causal model, and its user gives the mask of the prefix.

    Example: `trimaran weights export checkpoints exported --dtype bf16`
    """
    need_safetensors("trimaran weights export")
    from trimaran.engine.checkpoint.reader import SavedCheckpoint
    from trimaran.engine.hugging_face.exporting import export as export_to_hf

    started = time.monotonic()
    saved = SavedCheckpoint(checkpoint)
    tokenizer = find_tokenizer(saved.job, (saved.path, saved.path.parent))
    with copying("writing") as on_progress:
        exported = export_to_hf(saved, out, dtype, int(shard_gib * GIB), tokenizer, on_progress)
    seconds = time.monotonic() - started
    if json:
        print_json({"folder": str(out), "iteration": saved.iteration, "seconds": round(seconds, 3), **asdict(exported)})
        return
    print(
        f"{out}: {exported.family}, {exported.parameters / 1e6:,.1f} million parameters of iteration {saved.iteration},"
        f" {exported.bytes / GIB:.3g} GiB in {dtype}; {seconds:.1f} s. Files: {', '.join(exported.files)}."
    )
    if saved.model.objective == "prefix":
        print(
            "It was trained as a prefix-LM; transformers attends causally within the prompt, unless it is given a mask."
        )


@weights.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(help="The folder to create: a checkpoint and job.yaml.")],
    data: Annotated[
        str | None, typer.Option(help="PREFIX of prepared data to train on; synthetic data otherwise.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a checkpoint and a job of a GPT-2, BLOOM or Llama in Hugging Face's format, to continue training.

    Example: `trimaran weights import gpt2 tuned --data tokens/mine && trimaran train tuned/job.yaml`
    """
    need_safetensors("trimaran weights import")
    from trimaran.engine.hugging_face.importing import JOB
    from trimaran.engine.hugging_face.importing import import_ as import_from_hf

    started = time.monotonic()
    with copying("reading") as on_progress:
        job = import_from_hf(folder, out, data, on_progress)
    seconds, parameters = time.monotonic() - started, int(total_parameters(job.model))
    if json:
        summary = {"folder": str(out), "job": str(out / JOB), "parameters": parameters, "seconds": round(seconds, 3)}
        print_json({**summary, "model": job.model.to_dict()})
        return
    print(f"{out}: {job.model.name}, {parameters / 1e6:,.1f} million parameters; {seconds:.1f} s.")
    if data is None:
        print(f"Its data is synthetic: `trimaran data prepare` tokenizes texts, to be named in {out / JOB}.")
    print(f"Continue with: trimaran train {out / JOB}")


def need_safetensors(command: str) -> None:
    need_torch(command)
    require_package("safetensors", f"`{command}`", "train")
