"""Launch files of others become Jobs: BLOOM's own script, arrays, dumps, JSON; what is missing gets a sentence."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.export.parsers import FIXTURES
from tests.export.test_launch_scripts import parsed
from trimaran.export.formats import read_launch_file
from trimaran.export.megatron_batch import steps_for
from trimaran.export.partial_job import PartialJob, complete_job
from trimaran.spec import Batch, Mistake, presets
from trimaran.spec.batch import Ramp
from trimaran.spec.files import load_job

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
BLOOM = Path(__file__).parents[2] / "examples" / "jobs" / "bloom-176b.yaml"
TR11 = (FIXTURES / "bigscience" / "tr11-176B-ml.slurm").read_text()
JEAN_ZAY = presets.cluster("jean-zay-a100-80gb")
SHORT = """#!/bin/bash
# a comment with --num-layers 3
export OMP_NUM_THREADS=4
N_LAYERS=$((2 * 12))
LAYERS=24; HIDDEN=1024
ARGS=(
    --num-layers $LAYERS  # not 12
    --hidden-size "$HIDDEN" --num-attention-heads 16
    --seq-length ${SEQ:-1024} --max-position-embeddings 1024
    --vocab-size 50257
)
MORE=" --micro-batch-size 4 --global-batch-size 64 \\
    --train-iters 100 --lr-warmup-iters 10 --fp16 "
torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py "${ARGS[@]}" $MORE --tensor-model-parallel-size 2 \\
    --unheard-of 3 --distribute-saved-activations --save "$OUT/run" 2>&1 | tee log.txt
"""


PIECES = (
    *("--num-layers", " 3", "=", " ", "\n", "\\\n", '"', "'", "`", "$(", "${A", "}", ")", "(", "A=", "$A", "export "),
    *("<<EOF\n", "EOF\n", "# ", ";", "|", ">", "2>&1", "x.py ", "--split ", "--zero-stage ", "$((1 + 2))", "[@]"),
    *("--rampup-batch-size 1 2 3 ", "--global-batch-size 8 ", "--pipeline-model-parallel-layout 'E(t|)*2L' "),
)


def found_in(text: str) -> PartialJob:
    found = read_launch_file(text, "train.sh")
    assert found is not None
    return found


def dump_of(log: str) -> str:
    """The head of a real log: its argument dump without the iterations."""
    return re.split(r"^.*\biteration +\d+/", (LOGS / log).read_text(), maxsplit=1, flags=re.MULTILINE)[0]


def test_blooms_own_script_is_blooms_job() -> None:
    """Its file says 24 nodes, the ones it went on with; the job in the examples is on 48."""
    found = found_in(TR11)
    assert found.trainer == "megatron-deepspeed-2022"
    job = complete_job(found, JEAN_ZAY, None, "tr11-176B-ml.slurm", ["cluster.nodes=48"])
    bloom = load_job(BLOOM)
    assert (job.layout, job.batch, job.precision, job.optimizer) == (
        bloom.layout,
        bloom.batch,
        bloom.precision,
        bloom.optimizer,
    )
    assert job.model.replace(name="", source="") == bloom.model.replace(name="", source="")
    assert job.cluster == bloom.cluster
    assert (job.seed, job.recipe.learning_rate, job.recipe.minimum_learning_rate) == (42, 6e-5, 6e-6)
    assert (job.recipe.schedule, job.recipe.warmup_samples, job.recipe.decay_samples) == ("cosine", 183105, 200000000)
    assert job.environment["CUDA_LAUNCH_BLOCKING"] == "1"
    assert job.name == "tr11-176B-ml"


def test_what_only_the_running_shell_knows_is_listed() -> None:
    unread = " ".join(found_in(TR11).unread)
    assert "--train-weighted-split-paths-path" in unread
    assert "--save $six_ALL_CCFRSCRATCH/checkpoints/tr11-176B-ml/checkpoints/main" in unread
    assert "--num-layers" not in unread
    assert "--log-interval" not in unread


def test_a_script_with_arrays_strings_and_defaults_is_read() -> None:
    found = found_in(SHORT)
    assert found.trainer == "megatron-lm"
    job = complete_job(found, presets.cluster("selene"), None, "train.sh")
    assert (job.model.layers, job.model.hidden, job.model.seq_len, job.model.vocab) == (24, 1024, 1024, 50257)
    assert (job.layout.dp, job.layout.tp, job.layout.micro_batch, job.cluster.nodes) == (8, 2, 4, 2)
    assert (job.precision, job.steps, job.recipe.warmup_samples) == ("fp16", 100, 640)
    assert job.recipe.betas == (0.9, 0.999)  # Megatron's own, where nothing is said
    assert job.environment == {"OMP_NUM_THREADS": "4"}
    assert found.unread == ("--save $OUT/run", "--unheard-of 3", "--distribute-saved-activations")


def test_a_logs_argument_dump_is_the_job_that_printed_it() -> None:
    job = complete_job(found_in(dump_of("megatron_lm_345m_pp4.log")), presets.cluster("selene"), None, "run.log")
    assert (job.trainer.name, job.precision, job.layout.recompute) == ("megatron-lm", "fp16", "none")
    assert (job.layout.dp, job.layout.tp, job.layout.pp, job.layout.micro_batch) == (1, 1, 4, 1)
    assert (job.cluster.devices, job.batch.size, job.model.layers, job.model.hidden) == (4, 8, 24, 1024)


def test_what_megatron_deepspeed_would_print_of_blooms_job_is_blooms_job(tmp_path: Path) -> None:
    """Printed as its _print_args does: the name, dots up to column 48, the value."""
    bloom = load_job(BLOOM)
    flags, _ = parsed(bloom, "megatron-deepspeed", tmp_path)
    values = {flag.lstrip("-").replace("-", "_"): value for flag, value in flags.items()} | {"world_size": 384}
    values["position_embedding_type"] = f"PositionEmbeddingType.{values['position_embedding_type']}"
    lines = [f"[default0]:  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    job = complete_job(found_in("\n".join(lines)), JEAN_ZAY, None, "args.txt")
    assert (job.layout, job.batch, job.recipe, job.precision) == (bloom.layout, bloom.batch, bloom.recipe, "bf16")
    assert job.model.replace(name="", source="") == bloom.model.replace(name="", source="")


def test_a_log_with_iterations_is_a_measurement_and_no_launch_file() -> None:
    assert read_launch_file((LOGS / "megatron_deepspeed_176b.log").read_text(), "run.log") is None


@pytest.mark.parametrize(
    "flag",
    [
        "--optimizer sgd",
        "--lr-decay-style WSD",
        "--position-embedding-type yarn",
        "--step-batch-size-schedule 0:16 1M:32 2M:64",
    ],
)
def test_a_value_that_a_job_cannot_express_is_listed_as_unread(flag: str) -> None:
    name, _, words = flag.partition(" ")
    text = SHORT.replace("--global-batch-size 64", "") if "batch" in flag else SHORT
    assert flag in found_in(text.replace("--unheard-of 3", f"{name} '{words}'")).unread


def test_notes_that_quote_a_command_are_notes() -> None:
    table = "| Nodes | TP |\n| ----: | -: |\n| 48 | 4 |\n"
    assert read_launch_file(f"# Tuning\n```\n{SHORT}```\n{table}", "notes.md") is None
    for notes in (BLOOM.parents[1] / "notes").glob("*.md"):
        assert read_launch_file(notes.read_text(), notes.name) is None


@settings(max_examples=150)
@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    with suppress(Mistake):
        read_launch_file(text, "file")


def test_other_files_are_not_launch_files() -> None:
    for text in ("", "{", '{"a": 1}', "# Notes\n| Nodes | TP |\n", "model: tiny\n", "#!/bin/bash\necho hello\n"):
        assert read_launch_file(text, "file") is None


def test_a_deepspeed_file_needs_a_model_and_overrides_its_fields() -> None:
    document = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": True, "initial_scale_power": 12},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.99]}},
        "activation_checkpointing": {"partition_activations": True},
    }
    found = found_in(json.dumps(document))
    with pytest.raises(Mistake, match=r"layers, hidden, heads; give the model with --model"):
        complete_job(found, JEAN_ZAY, None, "ds.json")
    job = complete_job(found, JEAN_ZAY, presets.model("gpt-1b3"), "ds.json")
    assert (job.layout.dp, job.cluster.nodes, job.layout.zero, job.precision) == (8, 1, 3, "fp16")
    assert (job.recipe.loss_scale.initial, job.recipe.betas, job.recipe.learning_rate) == (4096.0, (0.9, 0.99), 3e-4)
    assert found.unread == ('"activation_checkpointing": {"partition_activations": true}',)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--global-batch-size 64", "", "states no global batch; give it with --set batch.size="),
        ("--num-layers $LAYERS", "", "model's layers; give the model with --model"),
        ("--num-layers $LAYERS", "--num-layers many", "--num-layers is 'many', but must be a number"),
        ("size 2", "size 3", "tp 3 x pp 1 = 3 devices, but 2 nodes of 8 have 16.*cluster.nodes="),
        ("--fp16", "--rampup-batch-size 1 2 --zero-stage 1", "START INCREMENT SAMPLES"),
        ("--fp16", "--rampup-batch-size 0 2 64 --zero-stage 1", "ramp.start is 0"),
        ("size 2", "size 0", "layout.tp is 0"),
        ("--global-batch-size 64", "--step-batch-size-schedule '0:4 x:8'", "TOKENS:BATCH"),
        ("--global-batch-size 64", "--step-batch-size-schedule ,", "no steps"),
        ('--hidden-size "$HIDDEN"', "--hidden-size 1000", "hidden 1000 does not divide into 16 heads"),
        ("--fp16", "--split a,b", "--split is 'a,b'"),
    ],
)
def test_a_script_that_cannot_be_a_job_gets_a_sentence(old: str, new: str, words: str) -> None:
    assert old in SHORT
    with pytest.raises(Mistake, match=words):
        complete_job(found_in(SHORT.replace(old, new)), presets.cluster("selene"), None, "train.sh")


def test_a_flag_without_its_value_leaves_the_trainers_default() -> None:
    text = SHORT.replace("--fp16", "--use-megatron-fsdp --data-parallel-sharding-strategy --recompute-granularity")
    layout = found_in(text).values["layout"]
    assert (layout["zero"], layout["recompute"]) == (3, "none")


def test_settings_fill_what_a_file_lacks() -> None:
    text = SHORT.replace("--global-batch-size 64", "").replace("--num-layers $LAYERS", "")
    job = complete_job(found_in(text), presets.cluster("selene"), None, "t.sh", ["batch.size=32", "model.layers=12"])
    assert (job.batch.size, job.model.layers) == (32, 12)


@given(
    increments=st.integers(0, 12),
    increment=st.integers(1, 9),
    start=st.integers(1, 9),
    ramp_samples=st.integers(1, 900),
    samples=st.integers(0, 2000),
)
def test_the_steps_of_so_many_samples_are_those_of_walking_through_the_ramp_up(
    increments: int, increment: int, start: int, ramp_samples: int, samples: int
) -> None:
    ramp = Ramp(start=start, increment=increment, samples=ramp_samples)
    batch = Batch(size=start + increments * increment, ramp=ramp)
    consumed = steps = 0
    while consumed < samples and batch.size_after(consumed) < batch.size:
        consumed, steps = consumed + batch.size_after(consumed), steps + 1
    assert steps_for(samples, batch) == max(1, steps + max(0, samples - consumed) // batch.size)
