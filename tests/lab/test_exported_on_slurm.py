"""A batch script that `trimaran export` wrote, given to a real SLURM."""

import subprocess
from pathlib import Path

from tests.engine.commands import losses
from tests.processes import until
from tests.slurm.cluster import SlurmCluster
from trimaran.export.formats import TARGETS
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings


def test_the_exported_batch_script_trains_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    """One file, which holds the job: nothing else is on the nodes."""
    settings = ["layout.dp=2", "steps=3", "cluster.devices_per_node=1", "cluster.nodes=2", "name=two nodes"]
    script = TARGETS["slurm"](apply_settings(load_job("tiny"), settings)).files["train.slurm"]
    environment = {**slurm.environment, "OMP_NUM_THREADS": "1"}
    subprocess.run(["sbatch"], input=script, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)

    def logged() -> str:
        return "".join(file.read_text() for file in tmp_path.glob("two-nodes-*.out"))

    until(lambda: len(losses(logged())) == 3, "three iterations")
    assert "trimaran:" not in logged()
