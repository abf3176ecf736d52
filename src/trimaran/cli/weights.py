"""trimaran weights: take a trained model to `transformers`, and bring one from there to train on."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from trimaran.processes.command import need_torch

GIB = 2**30

weights = typer.Typer(
    help="Take weights to Hugging Face's transformers, and bring them from there.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@weights.command("export")
def export(
    checkpoint: Annotated[Path, typer.Argument(help="The saving.folder of a run (its newest checkpoint), or a step.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    to: Annotated[Literal["hf"], typer.Option("--to", help="Whose format: hf, that of Hugging Face's.")] = "hf",
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="What the weights are stored in.")] = "fp32",
    shard_gib: Annotated[float, typer.Option(min=1e-6, help="Files larger than so many GiB are divided.")] = 5.0,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Write a checkpoint as safetensors and config.json for transformers: GPT-2, BLOOM or Llama. Logits are the same.

    A prefix-LM is written as well: its weights are those of a causal model, and its prefix is up to who uses them.

    Example: `trimaran weights export checkpoints exported --dtype bf16`
    """
    need_safetensors("trimaran weights export")
    from trimaran.cli.progress import copying
    from trimaran.data.tokenizer import find_tokenizer
    from trimaran.engine.checkpoint.reader import Saved
    from trimaran.engine.hugging_face.exporting import export as exported

    started = time.monotonic()
    saved = Saved(checkpoint)
    tokenizer = find_tokenizer(saved.job, (saved.path, saved.path.parent))
    with copying("writing") as tell:
        made = exported(saved, out, dtype, int(shard_gib * GIB), tokenizer, tell)
    seconds = time.monotonic() - started
    if json:
        from dataclasses import asdict

        from trimaran.cli.show import print_json

        print_json({"folder": str(out), "iteration": saved.iteration, "seconds": round(seconds, 3), **asdict(made)})
        return
    print(
        f"{out}: {made.family}, {made.parameters / 1e6:,.1f} million parameters of iteration {saved.iteration},"
        f" {made.bytes / GIB:.3g} GiB in {dtype}; {seconds:.1f} s. Files: {', '.join(made.files)}."
    )
    if saved.model.objective == "prefix":
        print("It was trained as a prefix-LM; transformers looks at prompts causally, unless it is given a mask.")


@weights.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(help="The folder to make: a checkpoint and job.yaml.")],
    data: Annotated[str | None, typer.Option(help="PREFIX of prepared data to train on; else made-up data.")] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Make a checkpoint and a job of a GPT-2, BLOOM or Llama in Hugging Face's format, to train on from there.

    Example: `trimaran weights import gpt2 tuned --data tokens/mine && trimaran train tuned/job.yaml`
    """
    need_safetensors("trimaran weights import")
    from trimaran.cli.progress import copying
    from trimaran.cost.parameters import total_parameters
    from trimaran.engine.hugging_face.importing import JOB
    from trimaran.engine.hugging_face.importing import import_ as imported

    started = time.monotonic()
    with copying("reading") as tell:
        job = imported(folder, out, data, tell)
    seconds, parameters = time.monotonic() - started, int(total_parameters(job.model))
    if json:
        from trimaran.cli.show import print_json

        found = {"folder": str(out), "job": str(out / JOB), "parameters": parameters, "seconds": round(seconds, 3)}
        print_json({**found, "model": job.model.to_dict()})
        return
    print(f"{out}: {job.model.name}, {parameters / 1e6:,.1f} million parameters; {seconds:.1f} s.")
    if data is None:
        print(f"Its data is made up: `trimaran data prepare` makes some of texts, to be named in {out / JOB}.")
    print(f"Train on with: trimaran train {out / JOB}")


def need_safetensors(command: str) -> None:
    from trimaran.spec.mistake import require_package

    need_torch(command)
    require_package("safetensors", f"`{command}`", "train")
