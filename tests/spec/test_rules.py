"""Every invalid Job is refused with its values and the nearest valid Job; and that Job is valid."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.spec.strategies import jobs
from trimaran.spec import Batch, Job, Layout, Mistake, Model, Ramp, presets
from trimaran.spec.layout import stage_layers, weighted_layers
from trimaran.spec.nearest import nearest_changes
from trimaran.spec.rules import problems

BLOOM = {
    "model": presets.model("bloom-176b"),
    "cluster": presets.cluster("jean-zay-a100-80gb"),
    "trainer": presets.trainer("megatron-deepspeed-2022"),
    "layout": Layout(dp=8, tp=4, pp=12, micro_batch=2, zero=1, recompute="full", split="weighted"),
    "batch": Batch(size=2048),
}


def job(**changes: object) -> Job:
    """BLOOM's Job; a change such as layout={'dp': 4} goes into that part."""
    parts = {
        name: value.model_copy(update=changes.get(name, {})) if not isinstance(value, str) else value
        for name, value in BLOOM.items()
    }
    return Job.of({**parts, **{k: v for k, v in changes.items() if k not in BLOOM}}, "The job")


FP8 = {"cluster": dict(presets.cluster("hgx-h200").replace(nodes=48)), "trainer": dict(presets.trainer("trimaran"))}
TRIMARAN = {"trainer": presets.trainer("trimaran").model_dump()}
CASES: list[tuple[str, dict[str, object], list[str], str]] = [
    ("devices", {"layout": {"dp": 4}}, ["dp 4 x tp 4 x pp 12 = 192", "384"], "layout.dp = 8"),
    ("batch", {"batch": {"size": 2050}}, ["2050", "dp 8 x micro batch 2 = 16"], "batch.size = 2048"),
    (
        "ramp",
        {"batch": {"ramp": Ramp(start=8, increment=8, samples=10**6)}},
        ["ramp-up's batch 8", "16"],
        "layout.micro_batch = 1",
    ),
    ("heads", {"model": {"heads": 14, "kv_heads": 14}}, ["heads 14", "tp 4"], "layout.dp = 16, layout.tp = 2"),
    ("ffn", {"model": {"ffn_hidden": 57346}}, ["ffn_hidden 57346", "tp 4"], "model.ffn_hidden = 57348"),
    ("vocab", {"model": {"padded_vocab": 250882}}, ["padded_vocab 250882", "tp 4"], "model.padded_vocab = 250884"),
    ("stages", {"layout": {"split": "even"}}, ["70 layers", "12 stages"], "layout.split = weighted"),
    ("explicit", {"layout": {"split": (6,) * 12}}, ["72 layers", "70 layers"], "layout.split = weighted"),
    ("virtual", {"layout": {"virtual_stages": 2}}, ["virtual_stages 2", "1f1b"], "layout.virtual_stages = 1"),
    ("zero with pipeline", {"layout": {"zero": 2}}, ["ZeRO 2", "pipeline of 12", "0 or 1"], "layout.zero = 1"),
    ("precision", {"precision": "fp8"}, ["a100-80gb has no fp8"], "precision = bf16"),
    (
        "fp8 dimension",
        {"precision": "fp8", "model": {"ffn_hidden": 57376}, **FP8},
        ["multiples of 16", "ffn_hidden is 14344 on each of 4 tensor-parallel ranks"],
        "precision = bf16",
    ),
    (
        "fp8 tokens",
        {"precision": "fp8", "model": {"seq_len": 2044}, **FP8},
        ["multiples of 16", "micro batch 2 x seq_len 2044 is 4088"],
        "layout.micro_batch = 4",
    ),
    ("recompute", {"layout": {"recompute": "selective"}}, ["no selective recompute"], "layout.recompute = "),
    ("optimizer", {"trainer": {"optimizers": ("adam",)}, "optimizer": "adam-8bit"}, ["adam-8bit"], "optimizer = adam"),
]


def test_blooms_own_job_is_possible() -> None:
    """70 layers on 12 stages: the embedding and the head count as layers, 72/12 = 6."""
    assert job().stage_layers == (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    assert job().micro_batches == 128
    assert job().warnings() == []


@pytest.mark.parametrize(("changes", "words", "nearest"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_impossible_job_gets_a_sentence_and_the_nearest_one(
    changes: dict[str, object], words: list[str], nearest: str
) -> None:
    with pytest.raises(Mistake) as caught:
        job(**changes)
    text = str(caught.value)
    for word in words:
        assert word in text
    assert f"The nearest Job that works: {nearest}" in text


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"schedule": "zero-bubble"}, ["zero-bubble", "full recompute"]),
        ({"schedule": "zero-bubble", "recompute": "none", "zero": 3}, ["zero-bubble", "ZeRO 3"]),
        ({"schedule": "interleaved"}, ["interleaved", "virtual_stages 1"]),
        ({"schedule": "interleaved", "virtual_stages": 2, "micro_batch": 4}, ["64 micro batches", "12 stages"]),
        ({"micro_batch": 32}, ["8 micro batches", "12 stages"]),
    ],
)
def test_our_schedules_say_what_they_cannot_run(layout: dict[str, object], words: list[str]) -> None:
    changes = {"layout": layout, "trainer": presets.trainer("trimaran").model_dump()}
    with pytest.raises(Mistake) as caught:
        job(**changes, model={"layers": 94 if layout.get("virtual_stages") else 70})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "rank"),
    [
        ({"pp": 4, "dp": 24, "split": (20, 30, 0, 20)}, 2),
        ({"pp": 4, "dp": 24, "split": (0, 0, 70, 0)}, 1),
        ({"pp": 3, "dp": 32, "split": (20, 0, 20, 15, 0, 15), "schedule": "interleaved", "virtual_stages": 2}, 1),
    ],
)
def test_a_pipeline_rank_without_parameters_is_refused(layout: dict[str, object], rank: int) -> None:
    """Its optimizer would have nothing to update, which PyTorch refuses."""
    with pytest.raises(
        Mistake, match=rf"leaves nothing to train on pipeline rank {rank}; .* The nearest Job that works"
    ):
        job(**TRIMARAN, layout={"zero": 0, "tp": 4, "micro_batch": 1, **layout}, batch={"size": 2304})


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 4, "dp": 24, "split": (0, 35, 35, 0)},
        {"pp": 2, "dp": 48, "split": (70, 0)},
        {"pp": 3, "dp": 32, "split": (20, 0, 20, 15, 1, 14), "schedule": "interleaved", "virtual_stages": 2},
    ],
)
def test_the_ends_of_a_pipeline_and_some_chunks_may_be_without_layers(layout: dict[str, object]) -> None:
    """They have the embedding and the head, or other chunks; tests/engine/test_parity.py trains such a one."""
    made = job(**TRIMARAN, layout={"zero": 0, "tp": 4, "micro_batch": 1, **layout}, batch={"size": 2304})
    assert made.stage_layers == layout["split"]


def test_tensor_parallelism_across_nodes_is_allowed_and_warned() -> None:
    wide = job(layout={"tp": 16, "dp": 2}, model={"heads": 112, "kv_heads": 112})
    assert any("tp 16" in warning and "Omni-Path" in warning for warning in wide.warnings())


def test_torchtitan_cannot_tie_embeddings_over_a_pipeline() -> None:
    with pytest.raises(Mistake, match="torchtitan cannot tie"):
        job(trainer=presets.trainer("torchtitan").model_dump(), layout={"zero": 3})


@given(st.integers(1, 200), st.integers(1, 64))
def test_weighted_stages_hold_every_layer_and_differ_by_at_most_one_unit(layers: int, stages: int) -> None:
    split = weighted_layers(layers, stages)
    if split is None:
        assert layers + 2 < stages
        return
    units = [n + (i == 0) + (i == stages - 1) for i, n in enumerate(split)]
    assert sum(split) == layers
    assert min(split) >= 0
    assert max(units) - min(units) <= 1


@settings(max_examples=60)
@given(jobs(), st.sampled_from(["dp", "tp", "pp", "micro_batch"]), st.integers(1, 16))
def test_the_nearest_job_works(possible: Job, field: str, value: int) -> None:
    broken = possible.model_copy(update={"layout": possible.layout.model_copy(update={field: value})})
    assume(problems(broken))
    changes = nearest_changes(broken)
    assert changes, f"nothing close works for {broken.layout} on {broken.cluster.devices}"
    for change in changes:
        broken = change.apply(broken)
    assert problems(broken) == []
    Job.of(broken.model_dump())  # and every part of it accepts the values


@given(jobs())
@settings(max_examples=30)
def test_a_possible_job_splits_its_layers_and_batches_exactly(possible: Job) -> None:
    assert sum(possible.stage_layers) == possible.model.layers
    assert possible.micro_batches * possible.layout.micro_batch * possible.layout.dp == possible.batch.size
    assert stage_layers(possible.model.layers, possible.layout) == possible.stage_layers


def test_sentences_are_sentences() -> None:
    with pytest.raises(Mistake) as caught:
        job(layout={"dp": 4})
    assert re.fullmatch(r"The job: [^\n]+\.", str(caught.value))
    with pytest.raises(Mistake, match="lacks 'layers'"):
        Model.of({"hidden": 64, "heads": 4})
