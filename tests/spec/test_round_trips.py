"""Spec classes survive YAML and JSON without loss, are frozen, and derive defaults from other fields."""

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from tests.spec.strategies import jobs, models, trials
from trimaran.spec import Batch, Job, Mistake, Model, Ramp, Trial


@given(models())
def test_a_model_survives_yaml_and_json(model: Model) -> None:
    assert Model.from_yaml(model.to_yaml()) == model
    assert Model.from_json(model.to_json()) == model


@settings(max_examples=40)
@given(jobs())
def test_a_job_survives_yaml_and_json(job: Job) -> None:
    assert Job.from_yaml(job.to_yaml()) == job
    assert Job.from_json(job.to_json()) == job


@settings(max_examples=40)
@given(trials())
def test_a_trial_survives_yaml_and_json(trial: Trial) -> None:
    assert Trial.from_yaml(trial.to_yaml()) == trial
    assert Trial.from_json(trial.to_json()) == trial


def test_a_spec_is_frozen() -> None:
    model = Model(layers=2, hidden=64, heads=4)
    with pytest.raises(ValidationError):
        model.layers = 3  # type: ignore[misc]


def test_defaults_are_derived_from_other_fields() -> None:
    gpt = Model(layers=2, hidden=64, heads=4)
    assert (gpt.ffn_hidden, gpt.kv_heads, gpt.bias) == (256, 4, True)
    llama = Model(layers=2, hidden=64, heads=4, kv_heads=2, mlp="swiglu", norm="rmsnorm", ffn_hidden=224)
    assert not llama.bias


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, ["hidden 64", "5 heads", "4 heads"]),
        ({"kv_heads": 3}, ["4 heads", "3 key/value", "kv_heads 2"]),
        ({"vocab": 300, "padded_vocab": 200}, ["200", "300"]),
        ({"mlp": "swiglu"}, ["swiglu", "ffn_hidden"]),
        ({"layers": 0}, ["layers", "0"]),
        ({"layres": 3}, ["layres", "'layers'"]),
        ({"mlp": "relu"}, ["mlp", "relu"]),
    ],
)
def test_a_wrong_model_gets_a_sentence(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        Model.of({"layers": 2, "hidden": 64, "heads": 4, **changes})
    for word in words:
        assert word in str(caught.value)


def test_ramp_up_follows_megatrons_rule() -> None:
    """facts: per = SAMPLES/((GBS-START)/INC); GBS = START + int(consumed/per)*INC; full when consumed > SAMPLES."""
    batch = Batch(size=2048, ramp=Ramp(start=192, increment=16, samples=9_765_625))
    per = 9_765_625 / ((2048 - 192) / 16)
    for consumed in (0, 1, 84_186, 84_187, 84_188, 5_000_000, 9_765_624, 9_765_625):
        assert batch.size_after(consumed) == min(2048, 192 + int(consumed / per) * 16)
    assert batch.size_after(9_765_626) == 2048
    assert batch.sizes()[0] == 192
    assert batch.sizes()[-1] == 2048
    assert len(batch.sizes()) == 117


@pytest.mark.parametrize(("start", "increment", "word"), [(4096, 32, "4096"), (32, 50, "never reaches")])
def test_a_ramp_that_misses_its_batch_gets_a_sentence(start: int, increment: int, word: str) -> None:
    with pytest.raises(Mistake, match=word):
        Batch.of({"size": 2048, "ramp": {"start": start, "increment": increment, "samples": 1000}})
