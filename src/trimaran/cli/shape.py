"""trimaran shape: which layers x hidden x heads of a size trains fastest here."""

import re
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from trimaran.cli.options import (
    MOST_ROWS,
    FixOption,
    NodesOption,
    OnOption,
    OptimizerOption,
    PrecisionOption,
    TrainerOption,
)
from trimaran.cli.show import JsonOption, console, print_json, table
from trimaran.cost.identify import label_parameters
from trimaran.planner.question import Question
from trimaran.planner.shapes import RankedShape, rank_shapes, shapes_of_size
from trimaran.spec import Mistake
from trimaran.spec.bounds import MOST_LAYERS, MOST_TOKENS, MOST_VOCABULARY, MOST_WIDTH
from trimaran.spec.mistake import shortened

MOST_PARAMETERS = 1e16  # ten thousand times the largest that was trained


def shape(
    params: Annotated[str, typer.Option("--params", help="The size wanted, such as 175B, 1.3B, 350M.")],
    on: OnOption,
    gbs: Annotated[int, typer.Option("--gbs", help="Global batch, in samples.")] = 2048,
    nodes: NodesOption = None,
    tp: Annotated[int | None, typer.Option("--tp", help="Only this tensor width, as --fix tp=8.")] = None,
    hidden: Annotated[list[int] | None, typer.Option("--hidden", help="Only these widths (repeat it).")] = None,
    heads: Annotated[list[int] | None, typer.Option("--heads", help="Only these numbers of heads (repeat it).")] = None,
    layers: Annotated[list[int] | None, typer.Option("--layers", help="Only these depths (repeat it).")] = None,
    vocab: Annotated[
        int, typer.Option("--vocab", min=1, max=MOST_VOCABULARY, help="Tokens in the vocabulary.")
    ] = 50257,
    seq: Annotated[int, typer.Option("--seq", min=1, max=MOST_TOKENS, help="Tokens in a sample.")] = 2048,
    fix: FixOption = None,
    trainer: TrainerOption = "trimaran",
    precision: PrecisionOption = "",
    optimizer: OptimizerOption = "adam",
    top: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Rows to show.")] = 10,
    json: JsonOption = False,
) -> None:
    """Find the shape of a given size that trains fastest: layers x hidden x heads, each in its best layout.

    Ranked by seconds per iteration and parameter, with what tiles, waves, head dimension and softmax say about each.

    Example: `trimaran shape --params 200B --on jean-zay-a100-80gb --gbs 2048 --tp 8 --vocab 250880 --heads 64
    --hidden 13824 --hidden 14336 --hidden 14400 --trainer megatron-deepspeed-2022`
    """
    for name, values, most in (
        ("--hidden", hidden, MOST_WIDTH),
        ("--heads", heads, MOST_WIDTH),
        ("--layers", layers, MOST_LAYERS),
    ):
        for value in values or ():
            if not 1 <= value <= most:
                raise Mistake(f"{name} is {shortened(value)}, but it is a number from 1 to {most:,}.")
    fixed = [*(fix or []), *([f"tp={tp}"] if tp is not None else [])]
    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    question = Question.of("gpt-1b3", on, gbs, nodes, fix=fixed, **options)
    shapes = shapes_of_size(_size(params), vocab, seq, hidden or (), heads or (), layers or ())
    with Console(stderr=True).status(f"looking at {len(shapes)} shapes"):
        found = rank_shapes(question, shapes, top, every_head_count=bool(heads))
    if json:
        print_json([_record(shaped, found[0]) for shaped in found])
    else:
        _print(found)


def _size(text: str) -> float:
    size = label_parameters(text)
    if size is None and re.fullmatch(r"\d{1,20}(\.\d*)?(e\d\d?)?", text):
        size = float(text)
    if not size or size > MOST_PARAMETERS:
        raise Mistake(f"--params is {shortened(text)}, but a size is a number with M, B or T, such as 175B.")
    return size


def _record(shaped: RankedShape, best: RankedShape) -> dict[str, Any]:
    model, layout = shaped.model, shaped.best.layout
    seconds = shaped.best.seconds
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "ffn_hidden": model.ffn_hidden,
        "head_dim": model.head_dim,
        "vocab": model.vocab,
        "padded_vocab": model.vocab_rows(layout.tp),
        "parameters": shaped.parameters,
        "nodes": shaped.best.nodes,
        "layout": layout.to_dict(),
        "seconds": seconds,
        "seconds_per_billion": shaped.seconds_per_billion,
        "slower": shaped.seconds_per_billion / best.seconds_per_billion - 1,
        "tokens_per_second": shaped.best.question.batch.size * model.seq_len / seconds,
        "memory_gib": shaped.best.memory_gib,
        "arguments": [{"kind": a.kind, "text": a.text, "good": a.good} for a in shaped.reasons],
    }


def _print(found: list[RankedShape]) -> None:
    question, rows = found[0].best.question, []
    for shaped in found:
        model, layout = shaped.model, shaped.best.layout
        rows.append(
            [
                f"{shaped.parameters / 1e9:.4g}B",
                *(str(value) for value in (model.layers, model.hidden, model.heads, layout.dp, layout.tp, layout.pp)),
                str(layout.micro_batch),
                f"{shaped.best.memory_gib:.0f}GB",
                f"{shaped.best.seconds:.2f}",
                f"{shaped.seconds_per_billion:.4f}",
                f"{shaped.seconds_per_billion / found[0].seconds_per_billion - 1:+.1%}",
            ]
        )
    header = ["Size", "Layers", "Hidden", "Heads", "DP", "TP", "PP", "MBS", "Mem", "Sec/it", "s per 1e9", ""]
    title = (
        f"Shapes on up to {question.cluster.nodes} nodes of {question.cluster.name}, {question.trainer.name}, batch"
        f" {question.batch.size}: by seconds per iteration and parameter"
    )
    out = console()
    out.print(table(title, header, rows, left=()))
    for shaped in found:
        said = "; ".join(("" if a.good else "✗ ") + a.text for a in sorted(shaped.reasons, key=lambda a: a.good))
        out.print(Text.assemble((shaped.model.name, "bold"), f": {said}."))
    out.print("✗ costs speed. Only the time of a step is compared, not what a shape learns per token.", style="dim")
