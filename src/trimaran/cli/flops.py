"""trimaran flops: one step, by every formula."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from trimaran.cli.show import JsonOption, cell, print_json, print_table
from trimaran.cost.flops import FORMULAS, TrainingStep, tflops_per_device
from trimaran.cost.identify import match_formulas
from trimaran.cost.parameters import stage_parameters, total_parameters, transformer_parameters
from trimaran.ledger.published import published
from trimaran.ledger.recognise import read_file
from trimaran.spec import Mistake, Trial
from trimaran.spec.bounds import LEAST, MOST, MOST_BATCH, MOST_DEVICES
from trimaran.spec.files import is_job_preset, load_cluster, load_job, load_model, read_mapping

MEANING = {
    "model": "forward + backward, attention in full",
    "model-causal": "the same with half of the attention",
    "hardware": "with what recompute repeats",
    "bigscience-exact": "24·f·B·s·l·h²(1 + s/6h + V/16lh); f = 4 with full recompute, else 3",
    "bigscience-approx": "f·2·P·T, P the layers only",
    "6n": "6·N·T",
    "6n-attention": "6·N·T + 12·l·h·s·T: PaLM, nanoGPT, torchtitan",
}


def flops(
    what: Annotated[str, typer.Argument(help="A job or a model: a preset's name or a file.")] = "",
    seconds: Annotated[float | None, typer.Option(help="Seconds per iteration.")] = None,
    gbs: Annotated[int | None, typer.Option(min=1, max=MOST_BATCH, help="Global batch, in samples.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, max=MOST_DEVICES, help="How many devices.")] = None,
    on: Annotated[str, typer.Option(help="The cluster, for its device's peak.")] = "",
    tp: Annotated[int, typer.Option(min=1, max=MOST_DEVICES, help="Tensor parallel; it pads the vocabulary.")] = 1,
    recompute: Annotated[Literal["none", "selective", "full"], typer.Option(help="What is recomputed.")] = "none",
    printed: Annotated[float | None, typer.Option(help="TFLOPs somebody printed: by which formula?")] = None,
    table: Annotated[str, typer.Option(help="A file of measurements, or 'published': which formula each used.")] = "",
    json: JsonOption = False,
) -> None:
    """FLOPs of a training step by each named formula, with MFU and HFU, and which formula a printed figure used.

    Example: `trimaran flops bloom-176b --gbs 2048 --devices 384 --tp 4 --recompute full --seconds 104.5
    --on jean-zay-a100-80gb --printed 150.05`
    """
    if table:
        _identify_tables(table, json)
        return
    if not what:
        raise Mistake("Name a job file or a model, such as `trimaran flops bloom-176b --gbs 2048`.")
    if seconds is not None and not LEAST <= seconds <= MOST:
        raise Mistake(f"--seconds is {seconds:g}, but an iteration takes more than zero seconds, and ends.")
    if printed is not None and not LEAST <= printed <= MOST:
        raise Mistake(
            f"--printed is {printed:g}, but a device computes more than zero TFLOP/s, and no more than {MOST:g}."
        )
    path, stages = Path(what), list[int]()
    named_as_file = path.is_file() or path.suffix in (".yaml", ".yml", ".json")
    if is_job_preset(what) or (named_as_file and "model" in read_mapping(path)):
        job = load_job(what)
        step = TrainingStep(job.model, job.batch.size, job.layout.tp, job.layout.recompute)
        devices, peaks, precision = job.cluster.devices, job.cluster.device.peak_tflops, job.precision
        stages = stage_parameters(job.model, job.layout).tolist()
        for warning in job.warnings():
            print(f"trimaran: warning: {warning}", file=sys.stderr)
    else:
        if gbs is None:
            raise Mistake("A step's FLOPs depend on its batch: give --gbs, such as --gbs 2048, or a job file.")
        step = TrainingStep(load_model(what), gbs, tp, recompute)
        peaks = load_cluster(on).device.peak_tflops if on else {}
        precision = "bf16" if "bf16" in peaks else "fp16" if "fp16" in peaks else "fp32"
    if seconds is not None and devices is None:
        raise Mistake("TFLOPs per device need --devices, or a job file.")
    if printed is not None and seconds is None:
        raise Mistake("Which formula printed a figure cannot be found without --seconds.")
    _print(step, seconds, devices, peaks.get(precision), precision, printed, stages, json)


def _print(
    step: TrainingStep,
    seconds: float | None,
    devices: int | None,
    peak: float | None,
    precision: str,
    printed: float | None,
    stages: list[int],
    json: bool,
) -> None:
    model = step.model
    parameters, padded = total_parameters(model), total_parameters(model, step.tp)
    layers = transformer_parameters(model)
    counts = {name: float(formula(step)) for name, formula in FORMULAS.items()}
    rates: dict[str, float] = {}
    if seconds is not None:
        rates = {name: tflops_per_device(count, seconds, devices) for name, count in counts.items()}
    of_peak = {name: rate / peak for name, rate in rates.items()} if peak else {}
    used = _nearest(rates, printed)
    answer = {
        "model": model.name,
        "parameters": parameters,
        "parameters_padded": padded,
        "parameters_without_embeddings": layers,
        "parameters_by_stage_of_one_tensor_rank": stages,
        "tokens_per_step": step.tokens,
        "flops_per_step": counts,
        "tflops_per_device": rates,
        "mfu": of_peak.get("model"),
        "hfu": of_peak.get("hardware"),
        "peak_tflops": peak,
        "printed": printed,
        "printed_formulas": used,
    }
    if json:
        print_json(answer)
        return
    print(
        f"{model.name}: {parameters / 1e9:.3f}B parameters ({layers / 1e9:.3f}B without embeddings;"
        f" {padded / 1e9:.3f}B with the vocabulary padded for tp {step.tp}); {step.tokens:,} tokens a step;"
        f" recompute {step.recompute}."
    )
    if len(stages) > 1:
        ends = f"{stages[0] / 1e9:.3f}B on the first stage, {stages[-1] / 1e9:.3f}B on the last"
        most = f", {max(stages[1:-1]) / 1e9:.3f}B at most between" if len(stages) > 2 else ""
        print(f"One tensor rank holds {ends}{most}.")
    rows = [
        (name, f"{count:.6g}", cell(rates.get(name), ".2f"), cell(of_peak.get(name), ".1%"), MEANING[name])
        for name, count in counts.items()
    ]
    print_table("", ("formula", "FLOPs per step", "TFLOP/s per device", "of peak", "counts"), rows, left=(0, 4))
    if of_peak:
        shares = f"MFU {of_peak['model']:.1%} (model), HFU {of_peak['hardware']:.1%} (hardware)"
        print(f"{shares}, of {peak:g} TFLOP/s in {precision}.")
    if printed is not None:
        said = f"is what {' or '.join(used)} prints" if used else f"fits no formula at {seconds} s on {devices} devices"
        print(f"{printed:g} TFLOPs {said}.")


def _nearest(rates: dict[str, float], printed: float | None) -> list[str]:
    """The formula that gives the printed figure within 1 %, and those that give the very same here."""
    if printed is None or not rates:
        return []
    nearest = min(rates.values(), key=lambda rate: abs(rate / printed - 1))
    if abs(nearest / printed - 1) > 0.01:
        return []
    return [name for name, rate in rates.items() if abs(rate / nearest - 1) < 1e-4]


def _identify_tables(table: str, json: bool) -> None:
    """For each section of a file: the formula most of its rows agree with, and how well."""
    trials = published().trials if table == "published" else read_file(Path(table)).trials
    sections: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.outcome.seconds and trial.outcome.tflops and trial.setup.devices:
            sections.setdefault(trial.source.section, []).append(trial)
    found = []
    for section, rows in sections.items():
        best = [next(iter(match_formulas(t.setup, t.outcome.seconds or 0, t.outcome.tflops or 0)), None) for t in rows]
        good = [fit for fit in best if fit is not None and abs(fit.error) < 0.01]
        name = Counter(fit.tag for fit in good).most_common(1)[0][0] if good else "none"
        errors = [abs(fit.error) for fit in good if fit.tag == name]
        found.append((section, name, len(rows), len(errors), max(errors, default=0.0)))
    if json:
        keys = ("section", "formula", "rows", "agree", "worst_error")
        print_json([dict(zip(keys, row, strict=True)) for row in found])
        return
    print_table(
        "Which formula each table used (label: the printed size times 2·f·T)",
        ("section", "formula", "rows", "agree", "worst error"),
        [(s, n, str(rows), str(agree), f"{worst:.2%}" if agree else "") for s, n, rows, agree, worst in found],
        left=(0, 1),
    )
    if any(name == "none" for _, name, *_ in found):
        print("none: the rows contradict every formula; `trimaran audit` says why.")
