"""The size printed against the size the dimensions give: with embeddings, without, or simply wrong."""

from collections.abc import Iterator

from trimaran.cost.identify import label_parameters
from trimaran.cost.parameters import pipeline_total_parameters, total_parameters, transformer_parameters
from trimaran.ledger.audit.finding import Finding, where
from trimaran.spec import Trial

AGREES = 0.05
LARGEST_VOCAB = 262_144  # where the vocabulary is unknown, a label may still count one of this size


def size_label(parameters: float) -> str:
    billions = parameters / 1e9
    return f"{billions:.0f}B" if billions >= 10 else f"{billions:.1f}B"


def check_label(trial: Trial) -> Iterator[Finding]:
    setup, label = trial.setup, label_parameters(trial.setup.size_label)
    model = setup.to_model()
    if label is None or model is None:
        return
    layers = transformer_parameters(model)
    largest = model if setup.vocab else model.model_copy(update={"vocab": LARGEST_VOCAB})
    printed_by_trainer = pipeline_total_parameters(largest, setup.pp or 1, setup.tp or 1)
    if (1 - AGREES) * layers <= label <= (1 + AGREES) * printed_by_trainer:
        extra = total_parameters(model) / layers - 1
        if setup.vocab and label < (1 + AGREES) * layers and extra > 0.1:
            message = (
                f"{setup.size_label} counts the layers only; with embeddings the model has"
                f" {total_parameters(model) / 1e9:.2f}B parameters ({extra:+.0%})."
            )
            yield Finding("suspicious", "size", trial.id, where(trial), message)
        return
    true = total_parameters(model)
    message = (
        f"Labelled {setup.size_label}, but {setup.layers} layers of hidden {setup.hidden} and ffn"
        f" {model.ffn_hidden} have {true / 1e9:.2f}B parameters"
    )
    if setup.ffn_hidden and setup.vocab:
        held = pipeline_total_parameters(model, setup.pp or 1, setup.tp or 1)
        if held > true:
            message += f" ({held / 1e9:.2f}B as a trainer sums them over {setup.pp} stages, the tied embedding twice)"
        if setup.ffn_hidden != 4 * model.hidden:
            message += f"; an ffn of 4 x hidden = {4 * model.hidden} would make it {_with_usual_ffn(trial)}"
        yield Finding("impossible", "size", trial.id, where(trial), message + ".", {"size_label": size_label(held)})
    else:
        yield Finding(
            "contradictory", "size", trial.id, where(trial), message + " (its ffn or vocabulary is not stated)."
        )


def _with_usual_ffn(trial: Trial) -> str:
    model = trial.setup.model_copy(update={"ffn_hidden": None}).to_model()
    assert model is not None
    return f"{total_parameters(model) / 1e9:.1f}B"
