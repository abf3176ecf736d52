"""What ships with the package is right: shapes have their published sizes, constants name their source."""

from typing import Any

import pytest

from trimaran.ledger.published import published
from trimaran.spec import Batch, Cluster, Job, Layout, Link, Mistake, Model, TrainerProfile, presets
from trimaran.spec.base import Spec

CLUSTERS = [name for name in presets.names("clusters") if name != presets.HERE]
ALL = [(kind, name) for kind in presets.KINDS for name in presets.names(kind) if name != presets.HERE]
FORMULAS = {"bigscience-approx", "bigscience-exact", "model", "model-causal", "hardware", "6n", "6n-attention"}


def holds_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(holds_number(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_number(item) for item in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def unsourced(part: Any) -> list[str]:
    """Numbers of a cluster, and everything of a trainer, without a source."""
    if isinstance(part, Link):
        return [] if " " in part.source.strip() else ["source"]
    found = []
    for name, value in part:
        if isinstance(value, Spec):
            found += [f"{name}.{inner}" for inner in unsourced(value)]
        elif name in ("name", "sources"):
            continue
        elif (holds_number(value) or isinstance(part, TrainerProfile)) and " " not in part.sources.get(
            name, ""
        ).strip():
            found.append(name)
    return found


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_preset_has_its_files_name_and_survives_yaml_and_json(kind: str, name: str) -> None:
    preset = presets.preset(kind, name)
    assert preset.to_dict()["name"] == name
    assert type(preset).from_yaml(preset.to_yaml()) == preset
    assert type(preset).from_json(preset.to_json()) == preset


@pytest.mark.parametrize(("kind", "name"), [pair for pair in ALL if pair[0] != "models"])
def test_every_constant_of_a_cluster_or_trainer_has_a_source(kind: str, name: str) -> None:
    preset: Any = presets.preset(kind, name)
    assert unsourced(preset) == []
    assert set(preset.sources) <= set(type(preset).model_fields)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_constant_that_loses_its_source_is_noticed(name: str) -> None:
    cluster = presets.cluster(name).to_dict()
    for part, fields in ((cluster, ("nodes", "context_gib", "slack")), (cluster["device"], ("units", "power_watts"))):
        for field in fields:
            sentence = part["sources"].pop(field)
            assert [missing.split(".")[-1] for missing in unsourced(Cluster.of(cluster))] == [field]
            part["sources"][field] = sentence
    cluster["between"]["source"] = ""
    assert unsourced(Cluster.of(cluster)) == ["between.source"]


@pytest.mark.parametrize("name", presets.names("models"))
def test_every_model_says_where_its_shape_comes_from(name: str) -> None:
    assert " " in presets.model(name).source


def gpt_layers(model: Model) -> int:
    """BigScience's l(12h² + 13h): attention, an MLP of 4h and two norms, all with biases."""
    return model.layers * (12 * model.hidden**2 + 13 * model.hidden)


def gpt_size(model: Model) -> int:
    return gpt_layers(model) + (model.vocab + model.seq_len + 2) * model.hidden


GPT_BILLIONS = {
    "gpt-181b": 181,
    "gpt-182b": 182,
    "gpt-196b": 196,
    "gpt-177b": 177,
    "gpt-104b-wide": 104,
    "fugaku-30b": 30,
    "gpt-1b3": 1.3,
    "gpt3-175b": 174.6,  # as the Megatron-LM paper counts it
    # arXiv 2104.04473, table 1
    "sc21-1.7b": 1.7,
    "sc21-3.6b": 3.6,
    "sc21-7.5b": 7.5,
    "sc21-18b": 18.4,
    "sc21-39b": 39.1,
    "sc21-76b": 76.1,
    "sc21-145b": 145.6,
    "sc21-310b": 310.1,
    "sc21-530b": 529.6,
    "sc21-1t": 1008.0,
}


@pytest.mark.parametrize(("name", "billions"), GPT_BILLIONS.items())
def test_a_gpt_has_the_size_its_paper_prints(name: str, billions: float) -> None:
    model = presets.model(name)
    assert (model.mlp, model.norm, model.position) == ("gelu", "layernorm", "learned")
    assert model.tied_embeddings
    assert not model.embedding_norm
    assert model.ffn_hidden == 4 * model.hidden
    digits = 0 if isinstance(billions, int) else 1
    assert round(gpt_size(model) / 1e9, digits) == billions


def test_the_200b_of_bigscience_counts_its_layers_only() -> None:
    model = presets.model("gpt-200b")
    assert round(gpt_layers(model) / 1e9, 1) == 199.1
    assert round(gpt_size(model) / 1e9, 1) == 202.7


def test_bloom_has_every_parameter_of_the_released_model() -> None:
    model = presets.model("bloom-176b")
    assert (model.heads, model.position, model.embedding_norm, model.tied_embeddings) == (112, "alibi", True, True)
    # No position table; one norm after the embedding, one at the end, each a weight and a bias.
    assert gpt_layers(model) + (model.vocab + 4) * model.hidden == 176_247_271_424


def test_the_mistaken_104b_is_a_57b() -> None:
    meant, measured = presets.model("gpt-104b-wide"), presets.model("gpt-104b-wide-ffn20480")
    assert measured == meant.replace(name=measured.name, ffn_hidden=20480, source=measured.source)
    lost = meant.layers * (meant.ffn_hidden - measured.ffn_hidden) * (2 * meant.hidden + 1)
    assert round((gpt_size(meant) - lost) / 1e9, 1) == 56.7


@pytest.mark.parametrize(
    ("name", "released"),
    [("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496), ("llama3-405b", 405_853_388_800)],
)
def test_a_llama_has_every_parameter_of_the_released_model(name: str, released: int) -> None:
    model = presets.model(name)
    assert (model.mlp, model.norm, model.position) == ("swiglu", "rmsnorm", "rotary")
    assert (model.bias, model.tied_embeddings) == (False, False)
    hidden, kv_width = model.hidden, model.kv_heads * model.hidden // model.heads
    layer = 2 * hidden**2 + 2 * hidden * kv_width + 3 * hidden * model.ffn_hidden + 2 * hidden
    assert model.layers * layer + 2 * model.vocab * hidden + hidden == released


def test_every_device_of_the_published_measurements_has_a_cluster() -> None:
    devices = {presets.cluster(name).device.name for name in CLUSTERS}
    assert {trial.setup.device for trial in published().trials} == {"a100-80gb", "v100-32gb", "v100-16gb", "a64fx"}
    assert devices >= {trial.setup.device for trial in published().trials}


def test_a_device_offers_only_the_dtypes_it_has() -> None:
    formats = {name: set(presets.cluster(name).device.peak_tflops) for name in CLUSTERS}
    assert formats["jean-zay-v100-32gb"] == formats["jean-zay-v100-16gb"] == {"fp32", "fp16"}
    assert formats["fugaku"] == {"fp32", "fp16"}
    assert formats["jean-zay-a100-80gb"] == formats["selene"] == {"fp32", "fp16", "bf16"}
    assert formats["dgx-h100"] == formats["hgx-h200"] == {"fp32", "fp16", "bf16", "fp8"}


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_measured_gemm_is_faster_than_the_peak(name: str) -> None:
    device = presets.cluster(name).device
    assert all(tflops < device.peak_tflops[precision] for precision, tflops in device.matmul_tflops.items())


@pytest.mark.parametrize("name", presets.names("trainers"))
def test_a_trainer_prints_by_a_known_formula(name: str) -> None:
    assert presets.trainer(name).prints in FORMULAS


def bloom_on(trainer: str) -> Job:
    """The layout with which BLOOM was trained."""
    return Job.of(
        {
            "model": presets.model("bloom-176b").to_dict(),
            "cluster": presets.cluster("jean-zay-a100-80gb").to_dict(),
            "trainer": presets.trainer(trainer).to_dict(),
            "layout": Layout(dp=8, tp=4, pp=12, micro_batch=2, zero=1, recompute="full", split="weighted").to_dict(),
            "batch": Batch(size=2048).to_dict(),
        }
    )


def test_blooms_own_run_can_be_described_with_presets() -> None:
    job = bloom_on("megatron-deepspeed-2022")
    assert job.stage_layers == (5, *[6] * 10, 5)
    assert job.micro_batches == 128


def test_blooms_own_run_is_refused_to_a_trainer_that_cannot_tie_embeddings_over_stages() -> None:
    with pytest.raises(Mistake, match="torchtitan"):
        bloom_on("torchtitan")


def test_a_misspelt_preset_gets_the_nearest_name() -> None:
    with pytest.raises(Mistake, match=r"no preset 'bloom-175b' among the models\. Did you mean 'bloom-176b'\?"):
        presets.model("bloom-175b")


def test_a_cpu_is_no_gpu_however_many_cores_it_has() -> None:
    assert [name for name in CLUSTERS if not presets.cluster(name).device.is_gpu] == ["fugaku"]
    cpu = presets.cluster("here").device.replace(name="cpu-96-cores", units=96)
    assert not cpu.is_gpu
