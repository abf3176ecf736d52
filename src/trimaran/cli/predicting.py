"""trimaran predict and trimaran score: the cost model on a CSV of configurations, alone or beside measurements."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.show import JsonOption, cell, print_json, print_table
from trimaran.cost.identify import printed_as, tags_of
from trimaran.cost.setups import missing
from trimaran.learn.score import PredictedTrial, predict_trials
from trimaran.learn.score import score as judge
from trimaran.learn.trials import calibration_trials, cluster_of, trainer_of
from trimaran.ledger.published import published as shipped
from trimaran.ledger.recognise import read_file
from trimaran.ledger.tables.csv import read_csv
from trimaran.spec import Cluster, Mistake, TrainerProfile, Trial, presets
from trimaran.spec.files import load_cluster, read_text, write_text

ClusterOption = Annotated[str, typer.Option(help="The cluster; else the preset with each row's device.")]
TrainerOption = Annotated[str, typer.Option(help="The trainer; else what each row's framework was at its time.")]


def predict(
    file: Annotated[Path, typer.Argument(help="A CSV with the columns of the published figures; most may be missing.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The same rows with predictions.")],
    cluster: ClusterOption = "",
    trainer: TrainerOption = "",
) -> None:
    """Predict seconds, memory and fit of every configuration in a CSV.

    Example: `trimaran predict layouts.csv --cluster jean-zay-a100-80gb -o predicted.csv`
    """
    text = read_text(file)
    trials = read_csv(text, str(file), needs_results=False).trials
    if not trials:
        raise Mistake(f"{file} has a header but no row, so there is nothing to predict.")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if any(row.values())]
    known = [trial for trial in trials if not missing(trial.setup)]
    asked = {trial.id: row for trial, row in zip(trials, rows, strict=True)}
    found = dict(zip((t.id for t in known), _predicted(known, cluster, trainer, asked), strict=True))
    added = ("pred_sec_per_it", "pred_sec_low", "pred_sec_high", "pred_mem_gb", "pred_fits", "pred_tflops", "pred_note")
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0], *added], lineterminator="\n")
    writer.writeheader()
    for row, trial in zip(rows, trials, strict=True):
        if trial.id not in found:
            lacks = ", ".join(missing(trial.setup))
            writer.writerow({**row, "pred_note": f"not predicted: {lacks} not stated"})
            continue
        p = found[trial.id].prediction
        formula = next(iter(tags_of(trial.outcome.tflops_formula, trial.setup)), "model")
        setup = trial.setup
        devices = setup.devices or (setup.dp or 1) * (setup.tp or 1) * (setup.pp or 1)
        tflops = printed_as(setup.model_copy(update={"devices": devices}), p.seconds, formula)
        values = (
            f"{p.seconds:.6g}",
            f"{p.low:.6g}",
            f"{p.high:.6g}",
            f"{p.first_stage_gib:.4g}",
            str(p.fits).lower(),
            cell(tflops, ".4g"),
            f"fullest stage {p.fullest_gib:.1f} GB; bubble {p.bubble:.0%};"
            f" most uncertain: {p.dominant} ±{p.dominant_share:.0%}; TFLOPs by {formula}",
        )
        writer.writerow({**row, **dict(zip(added, values, strict=True))})
    write_text(output, out.getvalue())
    print(f"{len(found)} of {len(rows)} rows predicted; written to {output}.")


def score(
    file: Annotated[Path | None, typer.Argument(help="A CSV with measurements; or --published.")] = None,
    published: Annotated[bool, typer.Option("--published", help="The published figures that ship along.")] = False,
    cluster: ClusterOption = "",
    trainer: TrainerOption = "",
    json: JsonOption = False,
) -> None:
    """Predictions against measurements, per table: error, bias, interval, fit or out of memory, rank and regret.

    Forced corrections of the audit are applied, and reprints count once.

    Example: `trimaran score --published`
    """
    if file is None and not published:
        raise Mistake("Name a CSV with measurements, or --published.")
    reading = shipped() if file is None else read_file(file)
    rows = calibration_trials(reading)
    if not rows:
        raise Mistake(f"{file} has no row that states layers, hidden, batch and layout, so nothing can be predicted.")
    _print_scores(_predicted(rows, cluster, trainer), json)


def _predicted(
    trials: list[Trial], cluster: str, trainer: str, asked: dict[str, dict[str, str]] | None = None
) -> list[PredictedTrial]:
    """`asked`: what a CSV says beyond a set-up, by trial: columns `cluster` and `attention` choose for their row."""

    def at(trial: Trial) -> Cluster:
        name = (asked or {}).get(trial.id, {}).get("cluster") or cluster
        return load_cluster(name) if name else cluster_of(trial)

    def by(trial: Trial) -> TrainerProfile:
        chosen = presets.trainer(trainer) if trainer else trainer_of(trial)
        attention = (asked or {}).get(trial.id, {}).get("attention", "")
        if attention in ("", chosen.attention):
            return chosen
        if attention not in ("naive", "fused-softmax", "flash"):
            raise Mistake(f"The column attention says {attention!r}; it may be naive, fused-softmax or flash.")
        return chosen.replace(attention=attention, name=f"{chosen.name} with {attention} attention")

    return predict_trials(trials, at, by)


def _print_scores(predicted: list[PredictedTrial], json: bool) -> None:
    tables: dict[str, list[PredictedTrial]] = {}
    devices: dict[str, list[PredictedTrial]] = {}
    for row in predicted:
        tables.setdefault(row.trial.source.section or row.trial.source.file, []).append(row)
        devices.setdefault(f"all on {row.trial.setup.device} by {row.trial.setup.framework}", []).append(row)
    scores = [judge(rows, name) for name, rows in (*tables.items(), *devices.items(), ("all", predicted))]
    if json:
        print_json([asdict(found) for found in scores])
        return
    rows = [
        (
            s.table,
            str(s.rows),
            *(cell(share, ".1%") for share in (s.mape, s.median)),
            cell(s.bias, "+.1%"),
            *(cell(share, ".1%") for share in (s.coverage, s.memory_mape)),
            str(s.fit_right),
            str(s.fit_wrong),
            cell(s.rank, ".2f"),
            cell(s.regret, ".3f"),
        )
        for s in scores
    ]
    header = ("table", "rows", "MAPE", "median", "bias", "inside", "memory", "fit right", "wrong", "rank", "regret")
    print_table("Predictions against measurements", header, rows)
