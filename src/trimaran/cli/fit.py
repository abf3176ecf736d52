"""trimaran fit: the fewest nodes for a model, or the largest model for some nodes."""

from typing import Annotated, Any

import typer

from trimaran.cli.options import FixOption, NodesOption, OnOption, OptimizerOption, PrecisionOption, TrainerOption
from trimaran.cli.plan import print_layouts
from trimaran.cli.show import JsonOption, print_json
from trimaran.cost.parameters import total_parameters
from trimaran.planner.plan import Plan
from trimaran.planner.question import Question
from trimaran.planner.sizes import MOST_NODES, fewest_nodes, largest_model
from trimaran.spec import Mistake, Model
from trimaran.spec.bounds import MOST_TOKENS, MOST_VOCABULARY


def fit(
    on: OnOption,
    model: Annotated[str, typer.Argument(help="A preset's name or a file; without it, the largest is sought.")] = "",
    nodes: NodesOption = None,
    gbs: Annotated[int, typer.Option("--gbs", help="Global batch, in samples.")] = 2048,
    aspect: Annotated[float, typer.Option("--aspect", help="Hidden over layers of the largest model.")] = 128,
    vocab: Annotated[
        int, typer.Option("--vocab", min=1, max=MOST_VOCABULARY, help="Vocabulary of the largest model.")
    ] = 50257,
    seq: Annotated[
        int, typer.Option("--seq", min=1, max=MOST_TOKENS, help="Tokens in a sample of the largest model.")
    ] = 2048,
    fix: FixOption = None,
    trainer: TrainerOption = "trimaran",
    precision: PrecisionOption = "",
    optimizer: OptimizerOption = "adam",
    json: JsonOption = False,
) -> None:
    """Find the fewest nodes that train a model, or the largest model that some nodes train, with tokens per second.

    The largest model is a GPT with hidden = 128 x layers, as in the GPT-3 family (see --aspect), heads of 128.

    Example: `trimaran fit gpt3-175b --on jean-zay-v100-32gb` or `trimaran fit --on jean-zay-a100-80gb --nodes 1`
    """
    if not 0 < aspect < 1e5:
        raise Mistake(f"--aspect is {aspect:g}, but hidden over layers is a number above 0; GPT-3 has 128.")
    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    question = Question.of(model or "gpt-1b3", on, gbs, nodes, fix=fix or (), **options)
    if model:
        _show(fewest_nodes(question, nodes or MOST_NODES), None, json)
        return
    like = question.replace(model=question.model.replace(vocab=vocab, seq_len=seq))
    _show(*largest_model(like, aspect), json)


def _show(found: Plan, too_large: Model | None, json: bool) -> None:
    question, best, model = found.question, found.best.row(), found.question.model
    parameters, nodes = total_parameters(model), question.cluster.nodes
    if json:
        answer: dict[str, Any] = {
            "model": {"name": model.name, "layers": model.layers, "hidden": model.hidden, "heads": model.heads},
            "parameters": parameters,
            "nodes": nodes,
            "tokens_per_second": best["tokens_per_second"],
            "best": best,
        }
        if too_large is not None:
            answer["too_large"] = {"name": too_large.name, "parameters": total_parameters(too_large)}
        print_json(answer)
        return
    where = f"{nodes} {'node' if nodes == 1 else 'nodes'} of {question.cluster.name}"
    if too_large is None:
        print(f"{model.name} ({parameters / 1e9:.4g}B) needs at least {where}.")
    else:
        print(
            f"The largest model on {where} is {model.layers} layers x hidden {model.hidden}"
            f" ({model.heads} heads of {model.head_dim}): {parameters / 1e9:.4g}B parameters."
            f" {too_large.layers} x {too_large.hidden} ({total_parameters(too_large) / 1e9:.4g}B) does not fit."
        )
    print(f"There it trains {best['tokens_per_second']:,.0f} tokens per second, a batch of {question.batch.size}.")
    title = f"The fastest layouts there, {question.trainer.name}, {question.precision}, {question.optimizer}"
    print_layouts(title, [each.cells() for each in found])
