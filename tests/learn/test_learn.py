"""Learning: it recovers what is true, bends to no single wrong row, and helps a new cluster with a few measurements."""

from functools import cache

import numpy as np
import pytest

from trimaran.cost.columns import columns_of
from trimaran.cost.constants import NAMES, PRIORS, Constants, constants_of
from trimaran.cost.predict import predict
from trimaran.cost.setups import job_of_setup
from trimaran.learn.fit import fit, predicted_seconds
from trimaran.learn.learned import learn
from trimaran.learn.score import predict_trials, score
from trimaran.learn.trials import calibration_trials, trainer_of
from trimaran.learn.validate import by_trainer, residual_of
from trimaran.ledger.published import published
from trimaran.spec import Cluster, Mistake, Trial, presets

CLUSTER = presets.cluster("jean-zay-a100-80gb")
NEW = CLUSTER.replace(constants={}, spreads={}, residual=None)  # the same machine, nothing known of it


@cache
def a100() -> tuple[Trial, ...]:
    rows = calibration_trials(published(("published.csv",)), CLUSTER)
    return tuple(t for t in rows if t.setup.framework == "megatron-deepspeed" and t.outcome.seconds)


def errors(trials: list[Trial], cluster: Cluster, k: Constants) -> np.ndarray:
    parts = by_trainer(trials, cluster, trainer_of)
    return np.concatenate([np.abs(predicted_seconds(p, cluster, k) / p.seconds - 1) for p in parts])


def test_five_measurements_improve_a_new_cluster_on_rows_it_did_not_see() -> None:
    """Every eleventh published row teaches; the error on all the others must fall by a quarter at least."""
    rows = list(a100())
    few, others = rows[::11][:5], [row for i, row in enumerate(rows) if i % 11 or i // 11 >= 5]
    before = errors(others, NEW, constants_of(NEW)).mean()
    after = errors(others, NEW, fit(by_trainer(few, NEW, trainer_of), NEW).constants).mean()
    assert len(few) == 5
    assert after < 0.75 * before
    assert after < 0.055


def synthetic(truth: Constants) -> list[Trial]:
    """The published set-ups with the seconds that a cluster with other constants would show."""
    made = []
    for trial in a100():
        columns = columns_of([job_of_setup(trial.setup, NEW, trainer_of(trial))])
        seconds = float(predict(columns, NEW, trainer_of(trial), truth).seconds[0])
        outcome = trial.outcome.model_copy(update={"seconds": seconds, "memory_gib": None})
        source = trial.source.model_copy(update={"date": ""})
        made.append(trial.model_copy(update={"outcome": outcome, "source": source}))
    return made


def test_the_fit_recovers_a_cluster_from_its_times() -> None:
    truth = constants_of(NEW).replace(
        inside_share=0.4, reduction_share=0.5, gemm_half_tokens=400.0, odd_head_slowdown=9.0
    )
    rows = synthetic(truth)
    found = fit(by_trainer(rows, NEW, trainer_of), NEW)
    assert errors(rows, NEW, found.constants).mean() < 0.01
    assert errors(rows, NEW, constants_of(NEW)).mean() > 0.05
    assert found.constants.odd_head_slowdown == pytest.approx(9.0, rel=0.15)


def test_one_wrong_row_does_not_bend_the_physics() -> None:
    rows = synthetic(constants_of(NEW).replace(inside_share=0.5))
    wrong = rows[3].model_copy(update={"outcome": rows[3].outcome.model_copy(update={"seconds": 1000.0})})
    spoiled = [*rows[:3], wrong, *rows[4:]]
    honest = [row for i, row in enumerate(rows) if i != 3]
    found = fit(by_trainer(spoiled, NEW, trainer_of), NEW)
    assert errors(honest, NEW, found.constants).mean() < 0.02


def test_what_the_data_cannot_tell_is_named_and_stays_at_its_prior() -> None:
    """No published A100 row is small enough to wait for the host."""
    found = fit(by_trainer(list(a100()), NEW, trainer_of), NEW)
    assert "layer_us" in found.undetermined
    assert found.constants.layer_us == pytest.approx(PRIORS["layer_us"].value, rel=0.05)
    assert "odd_head_slowdown" not in found.undetermined


def test_a_residual_makes_intervals_hold_the_promised_share() -> None:
    rng = np.random.default_rng(0)
    open_ = np.full(20_000, 0.03)
    error = rng.normal(0, np.hypot(0.04, 0.03), 20_000)
    assert residual_of(error, open_) == pytest.approx(0.04, abs=0.002)


def test_learning_writes_a_cluster_that_predicts_what_it_learned() -> None:
    tables = {"02-21": "one", "02-25": "two"}
    rows = [t for t in a100() if t.source.date in tables]
    learned = learn(rows, NEW, trainer_of, lambda trial: tables[trial.source.date])
    again = Cluster.from_yaml(learned.cluster.to_yaml())
    assert set(again.constants) == set(NAMES)
    assert learned.seconds_error == pytest.approx(errors(rows, again, constants_of(again)).mean(), abs=0.002)
    assert learned.left_out is not None
    assert "left out" in again.sources["constants"]


@pytest.mark.parametrize("count", [0, 2])
def test_too_little_to_learn_from_gets_a_sentence(count: int) -> None:
    with pytest.raises(Mistake, match="no trial of the device" if count == 0 else "too few"):
        learn(list(a100())[:count], NEW, trainer_of, lambda trial: trial.source.section)


def test_shipped_constants_predict_the_published_rows() -> None:
    """The bars of the issue: 3 % on A100 rows (one row contradicts its neighbours and is named), 6 % on the others."""
    rows = [t for t in calibration_trials(published(("published.csv",))) if t.outcome.seconds]
    at = {"a100-80gb": "jean-zay-a100-80gb", "v100-32gb": "jean-zay-v100-32gb", "v100-16gb": "jean-zay-v100-16gb"}
    own = [t for t in rows if t.setup.framework == "megatron-deepspeed"]

    def cluster(trial: Trial) -> Cluster:
        return presets.cluster(at.get(trial.setup.device or "", "fugaku"))

    found = predict_trials(own, cluster, trainer_of)
    by_device = {
        device: score([p for p in found if (p.trial.setup.device or "").startswith(device)], device)
        for device in ("a100", "v100", "a64fx")
    }
    contradictory = {"s000-L447"}
    honest = [p for p in found if p.trial.setup.device == "a100-80gb" and p.trial.source.label not in contradictory]
    assert (score(honest, "a100").mape or 1) <= 0.03
    assert (by_device["v100"].mape or 1) <= 0.06
    assert (by_device["a64fx"].mape or 1) <= 0.06
