"""Settings such as layout.tp=2 change a Job, or a sentence says which name or value is wrong."""

from functools import reduce
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spec.machines import two_cores
from tests.spec.strategies import jobs
from trimaran.spec import Cluster, Job, Mistake, Ramp, presets
from trimaran.spec.files import expand_preset, load_job
from trimaran.spec.settings import apply_settings


@pytest.fixture
def tiny(on_two_cores: None) -> Job:
    return load_job("tiny")


def at(job: Job, field: str) -> Any:
    return reduce(
        lambda part, name: part[name] if isinstance(part, dict) else getattr(part, name), field.split("."), job
    )


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("layout.tp=2", "layout.tp", 2),
        ("model.layers=8", "model.layers", 8),
        ("batch.size=32", "batch.size", 32),
        ("data.documents=apart", "data.documents", "apart"),
        ("data=tokens/wiki", "data.source", "tokens/wiki"),
        ("data.source=tokens/wiki", "data.source", "tokens/wiki"),
        ("data.source=2024", "data.source", "2024"),
        ("data.source={a/wiki: 2, a/code: 0.5}", "data.source", {"a/wiki": 2, "a/code": 0.5}),
        ("data.source.a/wiki.v2=3", "data.source", {"a/wiki.v2": 3}),
        ("data.validation=0", "data.validation", 0),
        ("precision=bf16", "precision", "bf16"),
        ("environment.NCCL_DEBUG=INFO", "environment.NCCL_DEBUG", "INFO"),
        ("environment.NCCL_IB_DISABLE=1", "environment.NCCL_IB_DISABLE", "1"),
        ("environment.A=b=c", "environment.A", "b=c"),
        ("batch.ramp={start: 4, increment: 4, samples: 32}", "batch.ramp", Ramp(start=4, increment=4, samples=32)),
        ("batch.ramp=null", "batch.ramp", None),
        ("recipe.clip=null", "recipe.clip", None),
        ("recipe.learning_rate=1e-4", "recipe.learning_rate", 0.0001),
        ("recipe.betas=[0.9, 0.999]", "recipe.betas", (0.9, 0.999)),
        ("layout.recompute=none", "layout.recompute", "none"),
        ("name=2024-13-40", "name", "2024-13-40"),
        ("name=@first", "name", "@first"),
        ("model=llama3-8b", "model.kv_heads", 8),
        ("model={preset: gpt-1b3, layers: 2}", "model.layers", 2),
        ("cluster={preset: hgx-h200, nodes: 1, devices_per_node: 1}", "cluster.device.name", "h200"),
    ],
)
def test_a_setting_changes_its_field(tiny: Job, setting: str, field: str, value: object) -> None:
    assert at(apply_settings(tiny, [setting]), field) == value


def test_a_setting_changes_nothing_else(tiny: Job) -> None:
    assert apply_settings(tiny, []) == tiny
    assert apply_settings(tiny, ["steps=7"]) == tiny.replace(steps=7)


def test_settings_are_applied_together_and_validated_once() -> None:
    """8 devices: either half of the change alone would be refused."""
    job = load_job("gpt-1b3-h200")
    eight = ["cluster.devices_per_node=8", "layout.dp=2", "layout.tp=4", "layout.micro_batch=8"]
    assert apply_settings(job, eight).layout.devices == 8
    with pytest.raises(Mistake, match="nearest Job that works"):
        apply_settings(job, eight[:2])


def test_fields_of_an_absent_part_can_be_set_one_by_one(tiny: Job) -> None:
    job = apply_settings(tiny, ["batch.ramp.start=4", "batch.ramp.increment=4", "batch.ramp.samples=32"])
    assert job.batch.sizes() == (4, 8, 12, 16)
    assert apply_settings(tiny, ["data=wiki", "data.documents=apart"]).data.source == "wiki"


def test_an_explicit_split_comes_with_its_stages(tiny: Job) -> None:
    assert apply_settings(tiny, ["layout.pp=3", "layout.split=[1,2,1]"]).stage_layers == (1, 2, 1)


@pytest.mark.parametrize(
    ("settings", "ffn_hidden", "kv_heads"),
    [
        (["model.hidden=256"], 1024, 4),
        (["model.hidden=256", "model.ffn_hidden=600"], 600, 4),
        (["model.heads=8"], 512, 8),
        (["model.heads=8", "model.kv_heads=2"], 512, 2),
        (["model.ffn_hidden=600"], 600, 4),
        (["model={preset: gpt-1b3, ffn_hidden: 600}", "model.layers=2"], 600, 16),
    ],
)
def test_derived_fields_follow_unless_stated(tiny: Job, settings: list[str], ffn_hidden: int, kv_heads: int) -> None:
    model = apply_settings(tiny, settings).model
    assert (model.ffn_hidden, model.kv_heads) == (ffn_hidden, kv_heads)


@pytest.mark.parametrize("changes", [{"hidden": 1024}, {"heads": 8}, {"hidden": 1024, "ffn_hidden": 64}, {"layers": 2}])
def test_a_job_file_and_settings_change_a_preset_alike(changes: dict[str, int]) -> None:
    job = load_job("gpt-1b3-h200")
    in_file = job.replace(model=expand_preset("models", {"preset": "gpt-1b3", **changes}))
    assert apply_settings(job, [f"model.{field}={value}" for field, value in changes.items()]) == in_file


def test_on_a_cpu_machine_the_processes_follow_the_layout_and_share_its_memory(tiny: Job) -> None:
    """Two cores with 16 GiB."""
    four = apply_settings(tiny, ["layout.tp=2", "layout.dp=2"])
    assert (four.cluster.devices, four.cluster.device.memory_gib) == (4, 4.0)
    assert apply_settings(four, ["layout.tp=1", "layout.dp=1"]).cluster == tiny.cluster


def test_devices_that_are_stated_or_real_do_not_follow(tiny: Job) -> None:
    with pytest.raises(Mistake, match=r"layout\.tp=2, cluster\.devices_per_node=1: .* = 2 devices.* have 1"):
        apply_settings(tiny, ["layout.tp=2", "cluster.devices_per_node=1"])
    with pytest.raises(Mistake, match=r"= 2 devices.* have 1"):
        apply_settings(load_job("gpt-1b3-h200"), ["layout.tp=2"])


def test_any_job_can_be_changed_to_run_on_a_cpu_machine(tiny: Job) -> None:
    assert apply_settings(load_job("gpt-1b3-h200"), ["cluster=here", "layout.tp=4"]).cluster.devices == 4


@given(st.lists(st.integers(1, 512), min_size=1, max_size=5))
def test_sharing_a_machine_keeps_its_memory(processes: list[int]) -> None:
    machine = reduce(Cluster.with_processes, processes, two_cores())
    assert machine.devices == processes[-1]
    assert machine.devices * machine.device.memory_gib == pytest.approx(16)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("layout.tpp=2", ["There is no layout.tpp in a Job; did you mean layout.tp?"]),
        ("tp=2", ["There is no tp in a Job; did you mean layout.tp?"]),
        ("layout.hidden=2", ["There is no layout.hidden in a Job; did you mean model.hidden?"]),
        ("batch.ramp.strat=2", ["batch.ramp.strat", "batch.ramp.start?"]),
        ("layout.split.0=2", ["There is no layout.split.0 in a Job; did you mean layout.split?"]),
        ("cluster.conditions.until=1", ["There is no cluster.conditions.until"]),
        ("wibble=2", ["There is no wibble in a Job"]),
        ("layout.tp", ["'layout.tp' is not a setting", "layout.tp=2"]),
        ("=2", ["'=2' is not a setting"]),
        ("layout.=2", ["'layout.=2' is not a setting"]),
        ("layout.tp=two", ["layout.tp is 'two'", "integer"]),
        ("layout.tp=", ["layout.tp is None"]),
        ("layout.split=[1", ["'layout.split=[1'", "not valid YAML"]),
        ("batch.ramp={start: 4}", ["lacks 'batch.ramp.increment'"]),
        ("data.prefix=document", ["needs documents apart"]),
        ("model=bloom-175b", ["'bloom-175b'", "'bloom-176b'"]),
        ("model=5", ["model is 5"]),
        ("layout=5", ["layout is 5"]),
        ("model.heads=3", ["hidden 128", "3 heads"]),
        ("layout.tp=3", ["The job tiny with layout.tp=3", "heads 4", "tp 3"]),
    ],
)
def test_a_wrong_setting_gets_a_sentence(tiny: Job, setting: str, words: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        apply_settings(tiny, [setting])
    for word in words:
        assert word in str(caught.value)


def test_every_field_of_a_preset_can_be_set_to_what_it_is(tiny: Job) -> None:
    for part in ("model", "cluster", "trainer", "layout", "batch", "recipe", "data"):
        for field, value in getattr(tiny, part).to_dict().items():
            text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n...")[0]
            assert apply_settings(tiny, [f"{part}.{field}={text}"]) == tiny


@settings(max_examples=25)
@given(jobs(), jobs())
def test_settings_can_turn_any_job_into_any_other(one: Job, other: Job) -> None:
    every = [f"{field}={yaml.safe_dump(value, default_flow_style=True)}" for field, value in other.to_dict().items()]
    assert apply_settings(one, every) == other


def test_settings_name_presets_that_exist() -> None:
    job = apply_settings(
        load_job("gpt-1b3-h200"), ["trainer=megatron-lm", "cluster={preset: dgx-h100, nodes: 1}", "layout.tp=8"]
    )
    assert job.trainer == presets.trainer("megatron-lm")
