"""Which trials a sweep is: a property of the combinations, against the rules of a Job asked one by one."""

import itertools
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.lab.choose import candidates
from trimaran.lab.supervise import is_stable
from trimaran.spec import Mistake, Sweep
from trimaran.spec.files import load_job, load_sweep
from trimaran.spec.presets import SWEEPS, names
from trimaran.spec.settings import apply_settings

TINY = load_job("tiny")
sizes = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)


def possible(settings: dict[str, Any]) -> bool:
    try:
        apply_settings(TINY, [f"{field}={value}" for field, value in settings.items()])
    except Mistake:
        return False
    return True


@settings(max_examples=30)
@given(tp=sizes, pp=sizes, mbs=sizes)
def test_trials_are_the_possible_combinations_by_predicted_seconds(
    tp: list[int], pp: list[int], mbs: list[int]
) -> None:
    axes = {"layout.tp": tp, "layout.pp": pp, "layout.micro_batch": mbs}
    found, refused = candidates(Sweep.of({"name": "s", "base": TINY.model_dump(), "axes": axes}))
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    assert len(found) == sum(possible(settings) for settings in every)
    assert len(found) + len(refused) == len(every)
    seconds = [float(predict(columns_of([c.job]), c.job.cluster, c.job.trainer).seconds[0]) for c in found]
    assert [c.seconds for c in found] == seconds
    fitting = [c.seconds for c in found if c.fits]
    assert fitting == sorted(fitting)


def test_with_a_number_of_devices_dp_follows_and_what_is_the_same_is_tried_once() -> None:
    axes = {"layout.tp": [1, 2, 3], "layout.pp": [1, 2, 4], "layout.zero": [0, 1]}
    found, _ = candidates(Sweep.of({"name": "s", "base": TINY.model_dump(), "axes": axes, "devices": 4}))
    layouts = {(c.job.layout.dp, c.job.layout.tp, c.job.layout.pp, c.job.layout.zero) for c in found}
    # dp x tp x pp = 4; ZeRO says something only with more than one replica.
    assert layouts == {(4, 1, 1, 0), (4, 1, 1, 1), (2, 2, 1, 0), (2, 2, 1, 1), (2, 1, 2, 0), (2, 1, 2, 1)} | {
        (1, 2, 2, 0),
        (1, 1, 4, 0),
    }


def test_a_sweep_is_the_same_after_saving_and_every_preset_has_valid_trials() -> None:
    for name in names(SWEEPS):
        sweep = load_sweep(name)
        assert Sweep.of(yaml.safe_load(sweep.to_yaml())) == sweep
        assert candidates(sweep)[0]


@given(st.lists(st.floats(0.9, 1.1), min_size=8, max_size=40), st.floats(2.0, 10.0))
def test_a_drifting_median_is_not_stable(noise: list[float], slower: float) -> None:
    rule = {"least": 8, "tolerance": 0.25}
    half = len(noise) // 2
    drifting = [{"seconds": n * (1.0 if i < half else slower)} for i, n in enumerate(noise)]
    assert is_stable([{"seconds": n} for n in noise], rule)
    assert not is_stable(drifting, rule)
    assert not is_stable([{"seconds": n, "warm_up": True} for n in noise], rule)
