"""A measured row reaches the cost model one way: predict, explain, score and the report say the same of it."""

import csv
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from trimaran.cli.predicting import predict as predict_command
from trimaran.cost.predict import predict_job
from trimaran.cost.setups import missing, predictable
from trimaran.learn.score import predict_trials
from trimaran.learn.trials import job_of, possible_job
from trimaran.ledger.published import published
from trimaran.planner.explain import explain
from trimaran.planner.question import Question
from trimaran.planner.ranking import search
from trimaran.report.campaign import rows_of
from trimaran.spec import Batch, Job, Layout, Trial, presets

TRIALS = published(("published.csv",)).trials
GIB = 2**30


@cache
def by_command() -> dict[str, dict[str, str]]:
    """The rows that `trimaran predict` writes for the shipped CSV."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "predicted.csv"
        predict_command(Path(str(files("trimaran") / "published" / "published.csv")), out)
        return {row["id"]: row for row in csv.DictReader(out.read_text().splitlines())}


def test_every_published_row_is_there() -> None:
    assert len(TRIALS) == len(by_command()) == 177
    assert sum(not missing(trial.setup) for trial in TRIALS) == 173


@pytest.mark.parametrize("trial", [t for t in TRIALS if not missing(t.setup)], ids=lambda trial: trial.source.label)
def test_predict_explain_score_and_report_agree(trial: Trial) -> None:
    row = by_command()[trial.source.label]
    (scored,) = predict_trials([trial])
    assert float(row["pred_sec_per_it"]) == pytest.approx(scored.seconds, rel=1e-5)
    assert float(row["pred_mem_gb"]) == pytest.approx(scored.memory_gib, rel=1e-3)
    assert row["pred_fits"] == str(scored.prediction.fits).lower()

    whole = predict_job(job_of(trial))
    assert (whole.seconds, whole.first_stage_gib) == pytest.approx((scored.seconds, scored.memory_gib))

    made = explain(job_of(trial))
    assert made.seconds == pytest.approx(scored.seconds)
    assert made.memory_bytes()["first"]["total"] / GIB == pytest.approx(scored.memory_gib)
    assert sum(made.time_seconds().values()) == pytest.approx(scored.seconds)

    (reported,) = rows_of([trial])
    assert (reported.predicted is None) == (not predictable(trial.setup))
    if reported.predicted is not None:
        expected = (reported.predicted.seconds, reported.predicted.memory_gib)
        assert expected == pytest.approx((scored.seconds, scored.memory_gib))


def test_what_is_left_out_stays_possible_and_a_contradiction_has_no_job() -> None:
    """s000-L319 prints dp 8 x tp 8 x pp 10 on 320 devices: predicted as printed, but it is no Job to plan from."""
    by_label = {trial.source.label: trial for trial in TRIALS}
    assert possible_job(by_label["s000-L319"]) is None
    assert possible_job(by_label["s000-L256"]) is not None
    assert predict_trials([by_label["s000-L319"]])[0].seconds > 0


def test_replicas_that_a_row_does_not_state_follow_from_its_devices() -> None:
    trial = next(t for t in TRIALS if t.source.label == "s000-L256")
    without = trial.model_copy(update={"setup": trial.setup.model_copy(update={"dp": None})})
    assert job_of(without).layout == job_of(trial).layout


@pytest.mark.parametrize(("layers", "virtual"), [(30, 1), (30, 2), (30, 3), (31, 1), (27, 2)])
def test_explain_and_the_planner_cost_an_uneven_split_alike(layers: int, virtual: int) -> None:
    cluster = presets.cluster("jean-zay-a100-80gb").replace(nodes=4)
    trainer = presets.trainer("megatron-lm")
    model = presets.model("gpt-181b").replace(layers=layers)
    fixed = {
        "dp": {1},
        "tp": {8},
        "pp": {4},
        "mbs": {1},
        "zero": {0},
        "recompute": {"full"},
        "virtual_stages": {virtual},
        "split": {"weighted"},
        "sequence_parallel": {False},
    }
    question = Question(model, cluster, trainer, Batch(size=64), "bf16", "adam", fixed)
    found = search(question)
    layout = found.layout(0)
    assert (layout.split, layout.virtual_stages) == ("weighted", virtual)
    job = question.job(layout)
    assert explain(job).seconds == pytest.approx(float(found.seconds[0]))
    assert predict_job(job).fullest_gib == pytest.approx(float(found.memory_gib[0]))


def test_an_explicit_split_costs_what_its_largest_stage_does() -> None:
    model, cluster = (
        presets.model("gpt-181b").replace(layers=72),
        presets.cluster("jean-zay-a100-80gb").replace(nodes=4),
    )

    def seconds(layers: int, split: str | tuple[int, ...]) -> float:
        layout = Layout(dp=1, tp=8, pp=4, micro_batch=1, recompute="full", split=split)  # type: ignore[arg-type]
        job = Job(
            model=model.replace(layers=layers),
            cluster=cluster,
            trainer=presets.trainer("megatron-deepspeed-2022"),
            layout=layout,
            batch=Batch(size=64),
        )
        return predict_job(job).seconds

    assert seconds(72, (17, 19, 19, 17)) == pytest.approx(seconds(76, "even"))
