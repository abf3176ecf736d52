"""The size printed against the size that the dimensions give, and against what the source says about its own numbers:
models that were really others, one-liners with wrong constants."""

from collections.abc import Iterator, Mapping

from trimaran.cost.identify import label_parameters
from trimaran.cost.parameters import pipeline_total_parameters, total_parameters, transformer_parameters
from trimaran.ledger.audit.finding import Finding
from trimaran.ledger.reading import Remark
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
            yield Finding.of(trial, "suspicious", "size", message)
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
            usual = total_parameters(model.replace(ffn_hidden=4 * model.hidden))
            message += f"; an ffn of 4 x hidden = {4 * model.hidden} would make it {usual / 1e9:.1f}B"
        yield Finding.of(trial, "impossible", "size", f"{message}.", {"size_label": size_label(held)})
    else:
        yield Finding.of(trial, "contradictory", "size", f"{message} (its ffn or vocabulary is not stated).")


def check_really(remark: Remark, trials: Mapping[str, Trial]) -> Iterator[Finding]:
    """'… these were really a 58B model': the label is wrong, and the width that explains it can be solved for."""
    size = remark.values["size_label"]
    for trial in (trials[id_] for id_ in remark.trials if id_ in trials):
        if trial.setup.size_label in (None, size):
            continue
        message = f"Labelled {trial.setup.size_label}, while the text at line {remark.line} says it was really {size}"
        if width := _ffn_of(trial, size):
            message += f" (an ffn_hidden of about {width} instead of {4 * (trial.setup.hidden or 0)})"
        yield Finding.of(trial, "impossible", "size", f"{message}.", {"size_label": size})


def _ffn_of(trial: Trial, size: str) -> int | None:
    """The ffn_hidden at which the stated shape has the stated size."""
    wanted, model = label_parameters(size), trial.setup.to_model()
    if wanted is None or model is None:
        return None
    without_mlp = total_parameters(model) - model.layers * 2 * model.hidden * model.ffn_hidden
    width = (wanted - without_mlp) / (2 * model.layers * model.hidden)
    return round(width) if width > 0 else None


def check_one_liner(remark: Remark, trials: Mapping[str, Trial], really: str | None) -> Iterator[Finding]:
    """A one-liner's constants against what the text and the table say, and the TFLOPs it should have printed."""
    used = remark.values
    for trial in (trials[id_] for id_ in remark.trials if id_ in trials):
        setup, printed = trial.setup, trial.outcome.tflops
        true_size = label_parameters(really or setup.size_label)
        wrong = [
            f"{name} {used[key]:g} instead of {stated}"
            for key, name, stated in (("seq_len", "a sequence of", setup.seq_len), ("gbs", "a batch of", setup.gbs))
            if stated and used.get(key) and used[key] != stated
        ]
        if really and used.get("size_b") and used["size_b"] * 1e9 != true_size:
            wrong.append(f"{used['size_b']:g}B parameters instead of {really}")
        if not wrong or printed is None or abs(used["tflops"] / printed - 1) > 0.01:
            continue
        if not (true_size and setup.gbs and setup.seq_len and setup.devices and trial.outcome.seconds):
            continue
        right = used["factor"] * 2 * true_size * setup.gbs * setup.seq_len
        right /= trial.outcome.seconds * setup.devices * 1e12
        message = (
            f"The one-liner at line {remark.line} used {' and '.join(wrong)}: it gives the printed {printed:g} TFLOPs,"
            f" with the right constants {right:.2f}."
        )
        yield Finding.of(trial, "impossible", "one-liner", message, {"tflops": round(right, 2)})
