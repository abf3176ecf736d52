"""torchtitan's own configuration files, read as Jobs."""

from pathlib import Path

import pytest

from trimaran.export.partial_job import complete_job
from trimaran.export.torchtitan.read import from_torchtitan
from trimaran.spec import Batch, Mistake, presets

FIXTURES = Path(__file__).parent / "fixtures" / "torchtitan"


def own(name: str) -> str:
    return (FIXTURES / f"{name}.toml").read_text()


def test_torchtitans_8b_on_its_64_gpus() -> None:
    found = from_torchtitan(own("llama3_8b"), "llama3_8b.toml")
    job = complete_job(found, presets.cluster("jean-zay-a100-80gb").replace(nodes=8), None, "llama3_8b")
    assert job.model == presets.model("llama3-8b")
    assert (job.layout.dp, job.layout.tp, job.layout.pp, job.layout.zero) == (64, 1, 1, 3)
    assert job.layout.recompute == "selective"
    assert (job.batch, job.precision, job.optimizer) == (Batch(size=64), "bf16", "fused-adam")
    assert (job.steps, job.recipe.warmup_samples, job.recipe.schedule) == (1000, 200 * 64, "linear")
    assert job.recipe.undecayed == ()
    assert found.unread == ("training.dataset = 'c4'",)


def test_torchtitans_70b_takes_what_tensor_parallelism_leaves_for_data() -> None:
    found = from_torchtitan(own("llama3_70b"), "llama3_70b.toml")
    job = complete_job(found, presets.cluster("jean-zay-a100-80gb").replace(nodes=8), None, "llama3_70b")
    assert job.model == presets.model("llama3-70b")
    assert (job.layout.dp, job.layout.tp, job.layout.micro_batch, job.layout.recompute) == (8, 8, 8, "full")
    assert job.layout.sequence_parallel
    assert job.batch.size == 64


def test_torchtitans_405b_on_its_128_gpus_and_what_a_job_cannot_express_of_it() -> None:
    found = from_torchtitan(own("llama3_405b"), "llama3_405b.toml")
    job = complete_job(found, presets.cluster("dgx-h100").replace(nodes=16), None, "llama3_405b")
    assert job.model == presets.model("llama3-405b")
    assert (job.layout.dp, job.layout.tp, job.batch.size, job.precision) == (16, 8, 32, "fp8")
    assert set(found.unread) == {
        "training.dataset = 'c4'",
        "parallelism.enable_async_tensor_parallel = True",
        "compile.enable = True",
    }


def test_a_plateau_before_the_decay_of_the_learning_rate_is_listed_as_unread() -> None:
    """torchtitan's debug model has none: its two steps of warm-up and eight tenths of ten steps make the whole."""
    text = own("debug_model")
    assert not [line for line in from_torchtitan(text, "debug_model.toml").unread if "decay_ratio" in line]
    plateau = text.replace("decay_ratio = 0.8", "decay_ratio = 0.5")
    assert "lr_scheduler.decay_ratio = 0.5" in from_torchtitan(plateau, "debug_model.toml").unread


def test_a_file_of_an_older_torchtitan_is_read_under_its_own_names() -> None:
    """v0.1.0 had checkpoint.enable_checkpoint and training.seed."""
    text = own("llama3_8b").replace("[checkpoint]\nenable = false", "[checkpoint]\nenable_checkpoint = true")
    found = from_torchtitan(text.replace("steps = 1000", "steps = 1000\nseed = 7"), "old.toml")
    assert found.values["saving"]["folder"] == "./outputs/checkpoint"
    assert found.values["seed"] == 7


@pytest.mark.parametrize(
    ("preset", "pp", "layers"),
    [("8B", 4, (8, 9, 8, 7)), ("70B", 8, (10, 11, 10, 10, 10, 10, 10, 9)), ("405B", 16, (7, *[8] * 14, 7))],
)
def test_layers_are_split_into_stages_as_torchtitan_does_by_default(
    preset: str, pp: int, layers: tuple[int, ...]
) -> None:
    """The layers are what generate_llm_fqn_per_model_part of v0.2.2 gave."""
    text = own("llama3_8b").replace('"8B"', f'"{preset}"').replace("tensor_parallel_degree = 1", "")
    text = text.replace("pipeline_parallel_degree = 1", f"pipeline_parallel_degree = {pp}")
    job = complete_job(
        from_torchtitan(text.replace("local_batch_size = 1", "local_batch_size = 16"), "train.toml"),
        presets.cluster("dgx-h100").replace(nodes=pp),
        None,
        "unnamed",
    )
    assert job.stage_layers == layers
    assert (job.layout.dp, job.layout.micro_batch, job.micro_batches) == (8, 1, 16)


def test_the_two_stages_per_device_of_a_zero_bubble_schedule_are_read_as_one() -> None:
    """Eight stages of Llama 8B are 4 5 4 4 4 4 4 3 layers; a V deals the first and the last to one device."""
    text = '[model]\nflavor = "8B"\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "{}"\n'
    found = from_torchtitan(text.format("ZBVZeroBubble"), "train.toml")
    assert found.values["layout"]["split"] == (4 + 3, 5 + 4, 4 + 4, 4 + 4)
    assert (found.values["layout"]["schedule"], found.values["layout"]["virtual_stages"]) == ("zero-bubble", 1)
    assert found.unread == ("parallelism.pipeline_parallel_schedule = 'ZBVZeroBubble'",)
    round_robin = from_torchtitan(text.format("InterleavedZeroBubble"), "train.toml")
    assert round_robin.values["layout"]["split"] == (4 + 4, 5 + 4, 4 + 4, 4 + 3)


def test_hybrid_sharding_is_listed_as_unread() -> None:
    text = "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
    found = from_torchtitan(text, "train.toml")
    assert (found.values["layout"]["dp"], found.values["layout"]["zero"]) == (8, 3)
    assert found.unread == ("parallelism.data_parallel_replicate_degree = 2",)


def test_an_unknown_model_needs_the_option_model() -> None:
    found = from_torchtitan(own("llama3_8b").replace('"llama3"', '"qwen3"').replace('"8B"', '"32B"'), "qwen.toml")
    cluster = presets.cluster("dgx-h100").replace(nodes=1)
    assert {"model.name = 'qwen3'", "model.flavor = '32B'"} <= set(found.unread)
    with pytest.raises(Mistake, match="--model"):
        complete_job(found, cluster, None, "qwen.toml")
    given = presets.model("gpt-1b3")
    assert complete_job(found, cluster, given, "qwen.toml").model == given.replace(seq_len=8192)
