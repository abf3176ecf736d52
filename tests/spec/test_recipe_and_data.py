"""Recipe and Data: defaults, schedules, old files, and the sentence for an invalid value."""

import json

import pytest
from hypothesis import given, settings

from tests.spec.strategies import jobs
from trimaran.spec import Data, Job, Mistake, Recipe, presets
from trimaran.spec.files import load_job


def test_the_recipe_is_gpt3s_unless_stated() -> None:
    """arXiv 2005.14165, appendix B: Adam with 0.9, 0.95 and 1e-8, gradients clipped at 1.0, weight decay of 0.1."""
    recipe = Recipe()
    assert (recipe.betas, recipe.eps, recipe.clip, recipe.weight_decay) == ((0.9, 0.95), 1e-8, 1.0, 0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 0}, ["learning_rate is 0", "greater than 0"]),
        ({"betas": [0.9, 1.0]}, ["betas.1 is 1.0", "less than 1"]),
        ({"betas": [-0.1, 0.9]}, ["betas.0 is -0.1"]),
        ({"betas": [0.9]}, ["betas"]),
        ({"eps": 0}, ["eps is 0"]),
        ({"weight_decay": -0.1}, ["weight_decay is -0.1"]),
        ({"clip": 0}, ["clip is 0"]),
        ({"clip": float("nan")}, ["clip is nan"]),
        ({"learning_rte": 1}, ["'learning_rte'", "'learning_rate'"]),
    ],
)
def test_an_invalid_recipe_gets_a_sentence(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        Recipe.of(changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prefix": "document"}, ["needs documents apart", "joined", "nearest that works: documents apart"]),
        ({"documents": "together"}, ["documents is 'together'", "'joined' or 'apart'"]),
        ({"source": {}}, ["empty mapping"]),
        ({"source": {"wiki": 0.5, "code": 0}}, ["weight of code", "is 0", "over 0"]),
        ({"source": {"wiki": float("nan")}}, ["weight of wiki", "nan"]),
        ({"source": ["wiki"]}, ["data.source is ['wiki']", "paths with weights"]),
        ({"validation": 1}, ["validation is 1", "less than 1"]),
        ({"loss_on": "prefix"}, ["loss_on is 'prefix'", "'targets' or 'all'"]),
    ],
)
def test_invalid_data_gets_a_sentence(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        Data.of(values)
    for word in words:
        assert word in str(caught.value)


def test_a_prefix_for_every_document_works_with_documents_apart() -> None:
    assert Data.of({"prefix": "document", "documents": "apart"}).prefix == "document"


@settings(max_examples=20)
@given(jobs())
def test_a_job_written_when_data_was_a_string_is_still_read(job: Job) -> None:
    """As 0.1's ledgers and files have it: the source as a string, and none of the fields that came later."""
    old = job.to_dict()
    source = "tokens/wiki"
    old["data"] = source
    del old["recipe"], old["model"]["rotary_base"]
    meant = job.replace(data={"source": source}, recipe={}, model={**job.model.model_dump(), "rotary_base": 10000})
    assert Job.of(old) == meant
    assert Job.from_json(json.dumps(old), trusted=True) == meant


@pytest.mark.parametrize("name", presets.names("models"))
def test_llama_3_has_a_larger_rotary_base(name: str) -> None:
    """rope_theta in Meta's params.json of Llama 3; RoFormer (arXiv 2104.09864) has 10000."""
    assert presets.model(name).rotary_base == (500_000 if name.startswith("llama3") else 10_000)


def test_the_learning_rate_warms_up_decays_and_stays() -> None:
    """Against hand-computed values of the usual curves: warm-up to 100 samples, down to a tenth at 300."""
    shape = {"learning_rate": 1.0, "minimum_learning_rate": 0.1, "warmup_samples": 100, "decay_samples": 300}
    curves = {
        "constant": {50: 0.5, 100: 1.0, 200: 1.0, 1000: 1.0},
        "linear": {50: 0.5, 100: 1.0, 200: 0.55, 250: 0.325, 300: 0.1, 1000: 0.1},
        "cosine": {50: 0.5, 100: 1.0, 200: 0.55, 250: 0.1 + 0.9 * 0.146446609, 300: 0.1, 1000: 0.1},
    }
    for schedule, points in curves.items():
        recipe = Recipe(**shape, schedule=schedule)
        assert {samples: recipe.rate_at(samples, 10**6) for samples in points} == pytest.approx(points)


def test_the_learning_rate_decays_over_the_whole_job_unless_stated() -> None:
    recipe = Recipe(learning_rate=1.0, schedule="linear")
    assert [recipe.rate_at(samples, 400) for samples in (0, 100, 400)] == [1.0, 0.75, 0.0]


def test_a_jobs_samples_count_its_ramp_up() -> None:
    """Batches of 4, 4, 6, 6, 6, 8 and on: Megatron's rule, added up by a plain loop."""
    job = load_job("tiny")
    ramped = job.replace(batch={"size": 8, "ramp": {"start": 4, "increment": 2, "samples": 20}}, steps=9, layout={})
    consumed = 0
    for _ in range(9):
        consumed += ramped.batch.size_after(consumed)
    assert ramped.samples == consumed
    assert job.samples == 20 * 16
