"""Exported scripts are valid shell, and pass flags that the trainers' own parsers accept."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.export.launchable import launchable
from tests.export.parsers import FIXTURES, Refused, checked_syntax, parser_of, passed_by
from trimaran.export.formats import TARGETS
from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings

BLOOM = Path(__file__).parents[2] / "examples" / "jobs" / "bloom-176b.yaml"
SITE = {"TOKENIZER": "bigscience/tokenizer", "DATA_PATH": "tokens/wiki", "MEGATRON": "/opt/megatron"}
LLAMA = (
    "model=llama3-8b",
    "cluster={preset: dgx-h100, nodes: 2}",
    "trainer=megatron-lm",
    "layout={dp: 2, tp: 2, pp: 4, micro_batch: 1, zero: 1, sequence_parallel: true}",
    "optimizer=fused-adam",
    "data.source={tokens/wiki: 0.7, tokens/the code: 0.3}",
    "saving.folder=check points",
    "saving.every=100",
)


@pytest.fixture
def bloom() -> Job:
    return load_job(BLOOM)


@pytest.fixture
def llama() -> Job:
    return apply_settings(load_job("gpt-1b3-h200"), LLAMA)


def parsed(job: Job, target: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the trainer's own parser makes of what the script really passes, and the words before it."""
    words, _ = passed_by(TARGETS[target](job).files["train.sh"], folder, **SITE)
    program = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return vars(parser_of(target).parse_args(words[program + 1 :])), words[: program + 1]


def test_blooms_job_gives_the_flags_that_bloom_was_trained_with(bloom: Job, tmp_path: Path) -> None:
    """Those of tr11-176B-ml.slurm; see test_reading.py for that file itself."""
    flags, launcher = parsed(bloom, "megatron-deepspeed", tmp_path)
    published = {
        "--tensor-model-parallel-size": 4,
        "--pipeline-model-parallel-size": 12,
        "--micro-batch-size": 2,
        "--global-batch-size": 2048,
        "--rampup-batch-size": ["192", "16", "9765625"],
        "--pp-partition-method": "type:transformer|embedding",
        "--num-layers": 70,
        "--hidden-size": 14336,
        "--num-attention-heads": 112,
        "--seq-length": 2048,
        "--max-position-embeddings": 2048,
        "--embed-layernorm": True,
        "--position-embedding-type": "alibi",
        "--pad-vocab-size-to": 250880,
        "--checkpoint-activations": True,
        "--deepspeed-activation-checkpointing": True,
        "--bf16": True,
        "--fp16": False,
        "--zero-stage": 0,
        "--deepspeed": True,
    }
    assert {flag: flags[flag] for flag in published} == published
    assert launcher[-1] == "/opt/megatron/pretrain_gpt.py"
    assert launcher[launcher.index("--nnodes") + 1] == "48"
    assert launcher[launcher.index("--nproc_per_node") + 1] == "8"
    stated = json.loads(TARGETS["megatron-deepspeed"](bloom).files["ds_config.json"])
    assert stated["zero_optimization"] == {"stage": 0}
    assert (stated["train_batch_size"], stated["train_micro_batch_size_per_gpu"]) == (2048, 2)
    assert (stated["bf16"], stated["gradient_clipping"]) == ({"enabled": True}, 1.0)
    assert flags["--deepspeed_config"] == str(tmp_path / "ds_config.json")


def test_megatron_deepspeed_supports_all_of_bloom_but_its_tokenizer_and_data(bloom: Job) -> None:
    lost = {each.field for each in TARGETS["megatron-deepspeed"](bloom).unsupported}
    assert lost == {"model.vocab", "data.source"}


def test_megatron_lm_does_not_support_blooms_positions_and_norm(bloom: Job) -> None:
    lost = {each.field for each in TARGETS["megatron-lm"](bloom).unsupported}
    assert lost == {"trainer", "model.position", "model.embedding_norm"}


def test_a_llama_gives_megatron_lm_what_its_own_example_gives(llama: Job, tmp_path: Path) -> None:
    """Flags of examples/llama/train_llama3_8b_h100_fp8.sh at the same commit, less what is about fp8 and context."""
    flags, _ = parsed(llama, "megatron-lm", tmp_path)
    published = {
        "--num-layers": 32,
        "--hidden-size": 4096,
        "--ffn-hidden-size": 14336,
        "--num-attention-heads": 32,
        "--group-query-attention": True,
        "--num-query-groups": 8,
        "--position-embedding-type": "rope",
        "--rotary-base": 500000,
        "--swiglu": True,
        "--normalization": "RMSNorm",
        "--untie-embeddings-and-output-weights": True,
        "--disable-bias-linear": True,
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--sequence-parallel": True,
        "--use-distributed-optimizer": True,
        "--overlap-grad-reduce": True,
        "--overlap-param-gather": True,
        "--bf16": True,
    }
    assert {flag: flags[flag] for flag in published} == published
    assert flags["--data-path"] == ["0.7", "tokens/wiki", "0.3", "tokens/the code"]
    assert (flags["--save"], flags["--save-interval"]) == ("check points", 100)


def test_a_ramp_up_reaches_the_same_batches_step_by_step(bloom: Job, tmp_path: Path) -> None:
    """By the flag's own description: the batch of the last threshold, in tokens, that was reached."""
    flags, _ = parsed(bloom, "megatron-lm", tmp_path)
    steps = [tuple(map(int, step.split(":"))) for step in flags["--step-batch-size-schedule"].split()]
    assert flags["--global-batch-size"] is None  # both are refused
    for samples in (0, 1, 84188, 84189, 4_000_000, 9_765_624, 9_765_625, 20_000_000):
        reached = [size for tokens, size in steps if samples >= tokens // 2048]
        assert reached[-1] == bloom.batch.size_after(samples)


@pytest.mark.parametrize(
    ("setting", "flag", "value"),
    [
        ("layout.split=[7, 8, 8, 9]", "--pipeline-model-parallel-layout", "Et*7|t*8|t*8|t*9L"),
        ("layout.split=[0, 16, 16, 0]", "--pipeline-model-parallel-layout", "E|t*16|t*16|L"),
        (
            "layout={schedule: interleaved, dp: 2, tp: 2, pp: 4, virtual_stages: 2}",
            "--num-virtual-stages-per-pipeline-rank",
            2,
        ),
        ("layout.recompute=selective", "--recompute-granularity", "selective"),
        ("layout={dp: 8, tp: 2, zero: 3}", "--data-parallel-sharding-strategy", "optim_grads_params"),
        ("layout={dp: 8, tp: 2, zero: 2}", "--ckpt-format", "fsdp_dtensor"),
        ("precision=fp8", "--fp8-format", "hybrid"),
        ("data=synthetic", "--mock-data", True),
        ("data.documents=apart", "--dataloader-inter-document-masking", True),
    ],
)
def test_each_setting_becomes_its_flag_of_megatron_lm(
    llama: Job, tmp_path: Path, setting: str, flag: str, value: object
) -> None:
    flags, _ = parsed(apply_settings(llama, [setting]), "megatron-lm", tmp_path)
    assert flags[flag] == value


def test_a_prefix_lm_starts_its_own_program(bloom: Job, tmp_path: Path) -> None:
    job = apply_settings(bloom, ["model.objective=prefix", "data.documents=apart", "data.prefix=document"])
    flags, launcher = parsed(job, "megatron-deepspeed", tmp_path)
    assert launcher[-1].endswith("/pretrain_prefix_lm.py")
    assert flags["--loss-on-targets-only"]
    assert flags["--reset-attention-mask"]


def test_the_jobs_variables_reach_the_processes(bloom: Job, tmp_path: Path) -> None:
    odd = "it's $HOME; `date`"
    job = bloom.replace(environment={"NCCL_ASYNC_ERROR_HANDLING": "1", "ODD": odd, "no-variable": "1"})
    exported = TARGETS["megatron-deepspeed"](job)
    _, seen = passed_by(exported.files["train.sh"], tmp_path, **SITE)
    assert (seen["NCCL_ASYNC_ERROR_HANDLING"], seen["ODD"]) == ("1", odd)
    assert "environment.no-variable" in {each.field for each in exported.unsupported}


@pytest.mark.parametrize("target", ["megatron-deepspeed", "megatron-lm"])
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(job=launchable())
def test_any_job_gives_flags_that_the_trainers_own_parser_takes(
    target: str, tmp_path_factory: pytest.TempPathFactory, job: Job
) -> None:
    try:
        files = TARGETS[target](job).files
    except Mistake:
        assume(False)
    checked_syntax(files["train.slurm"])
    flags, _ = parsed(job, target, tmp_path_factory.mktemp("script"))
    assert flags["--num-layers"] == job.model.layers
    assert flags["--lr"] == job.recipe.learning_rate


def test_the_rebuilt_parsers_refuse_what_the_real_ones_refuse() -> None:
    for words in (["--rampup-batch-size", "1", "2"], ["--position-embedding-type", "alibi"], ["--embed-layernorm"]):
        with pytest.raises(Refused):
            parser_of("megatron-lm").parse_args(words)
    with pytest.raises(Refused):
        parser_of("megatron-deepspeed").parse_args(["--num-layers", "many"])


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(job=launchable())
def test_deepspeeds_own_classes_have_every_key_with_its_type(job: Job) -> None:
    """As extracted from deepspeed 0.19.8: the sections of precision and ZeRO, and the names at the top."""
    known = json.loads((FIXTURES / "deepspeed" / "deepspeed.json").read_text())
    for target in ("deepspeed-json", "megatron-deepspeed"):
        document = json.loads(TARGETS[target](job).files["ds_config.json"])
        assert set(document) <= set(known["keys"]) | set(known["sections"])
        for name, section in known["sections"].items():
            for key, value in document.get(name, {}).items():
                assert type(value).__name__ == {"ZeroStageEnum": "int"}.get(section[key], section[key]) or (
                    section[key] == "float" and isinstance(value, int)
                )


def test_a_job_that_the_trainer_cannot_run_at_all_gets_a_sentence(llama: Job) -> None:
    """Interleaving deals micro batches in rounds of the stages there, but not with us."""
    layout = "layout={schedule: interleaved, dp: 2, tp: 2, pp: 4, virtual_stages: 2}"
    job = apply_settings(llama, ["trainer=trimaran", layout, "batch.size=10"])
    with pytest.raises(Mistake, match=r"for megatron-lm: .*5 micro batches.*nearest Job that works"):
        TARGETS["megatron-lm"](job)
