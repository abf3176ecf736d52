"""The scripts that start torchtitan, run with a launcher that only records how it was called."""

from pathlib import Path

from tests.export.launchable import BLOOM, llama
from tests.export.parsers import checked_syntax, passed_by
from trimaran.export.torchtitan.write import to_torchtitan
from trimaran.spec import presets
from trimaran.spec.files import load_job


def test_the_script_starts_torchtitan_on_every_device_with_the_jobs_variables(tmp_path: Path) -> None:
    job = load_job(BLOOM).replace(environment={"NCCL_DEBUG": "it's a $HOME", "not a name": "1"})
    site = {"MASTER_ADDR": "first", "TOKENIZER": "tok", "PYTHONPATH": ""}
    words, environment = passed_by(to_torchtitan(job).files["run.sh"], tmp_path, "--training.steps", "3", **site)
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given == {
        "--nproc_per_node": "8",
        "--nnodes": "48",
        "--rdzv_endpoint": "first:6000",
        "--rdzv_backend": "c10d",
        "--local-ranks-filter": "0",
        "--role": "rank",
        "--tee": "3",
        "-m": "torchtitan.train",
        "--job.config_file": str(tmp_path / "train.toml"),
        "--model.hf_assets_path": "tok",
        "--training.steps": "3",
    }
    assert environment["NCCL_DEBUG"] == "it's a $HOME"
    assert environment["PYTHONPATH"] == str(tmp_path)  # where the module of the shape lies


def test_the_script_logs_the_rank_that_has_the_loss(tmp_path: Path) -> None:
    """Two stages of two replicas on one node: the second stage begins with rank 2."""
    job = llama(presets.model("llama3-8b")).replace(
        cluster=presets.cluster("dgx-h100").replace(nodes=1, devices_per_node=4), layout={"dp": 2, "pp": 2, "zero": 2}
    )
    words, _ = passed_by(to_torchtitan(job).files["run.sh"], tmp_path, DATASET_PATH="c4 here")
    assert words[words.index("--local-ranks-filter") + 1] == "2"
    assert words[-2:] == ["--training.dataset_path", "c4 here"]


def test_every_script_is_valid_shell_whatever_the_name_of_the_job() -> None:
    files = to_torchtitan(load_job(BLOOM).replace(name='a "job"\n$(echo no)')).files
    scripts = [text for name, text in files.items() if name.endswith((".sh", ".slurm"))]
    assert len(scripts) == 2
    for text in scripts:
        checked_syntax(text)
