"""Recipe and Data: what a Job says to a trainer, and the sentence where it cannot be meant."""

import json

import pytest
from hypothesis import given, settings

from tests.spec.nouns import jobs
from trimaran.spec import Data, Job, Mistake, Recipe, presets


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
def test_a_wrong_recipe_gets_a_sentence(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        Recipe.of(changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prefix": "document"}, ["needs documents apart", "joined", "nearest that works: documents apart"]),
        ({"documents": "together"}, ["documents is 'together'", "'joined' or 'apart'"]),
        ({"loss_on": "prefix"}, ["loss_on is 'prefix'", "'targets' or 'all'"]),
    ],
)
def test_wrong_data_get_a_sentence(values: dict[str, object], words: list[str]) -> None:
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
    old = job.plain()
    source = old["data"]["source"]
    old["data"] = source
    del old["recipe"], old["model"]["rotary_base"]
    meant = job.but(data={"source": source}, recipe={}, model={**job.model.model_dump(), "rotary_base": 10000})
    assert Job.of(old) == meant
    assert Job.from_json(json.dumps(old), trusted=True) == meant


@pytest.mark.parametrize("name", presets.names("models"))
def test_llama_3_turns_slower(name: str) -> None:
    """rope_theta in Meta's params.json of Llama 3; RoFormer (arXiv 2104.09864) has 10000."""
    assert presets.model(name).rotary_base == (500_000 if name.startswith("llama3") else 10_000)
