"""`here`: the machine the tests run on, and machines with GPUs that a stand-in for nvidia-smi shows."""

import os
from pathlib import Path

import pytest

from tests.spec.test_presets import unsourced
from trimaran.probe.detect import _memory_bytes, detect_cluster
from trimaran.spec import Mistake


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("without_gpus")
def test_here_is_one_device_per_core_with_no_more_memory_than_the_machine() -> None:
    cluster = detect_cluster()
    lines = Path("/proc/meminfo").read_text().splitlines()
    total_gib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal")) / 2**20
    assert cluster.devices == len(os.sched_getaffinity(0))
    assert 0 < cluster.devices * cluster.device.memory_gib <= total_gib


@pytest.mark.usefixtures("without_gpus")
def test_here_measures_its_cores_and_says_so() -> None:
    cluster = detect_cluster()
    device = cluster.device
    assert unsourced(cluster) == []
    assert all(device.sources[name].startswith("measured here") for name in ("peak_tflops", "memory_gb_per_s"))
    # A core does 2 to 128 fp32 operations a cycle at 0.5 to 6 GHz, and copies no faster than its caches.
    assert 0.001 < device.peak_tflops["fp32"] < 0.77
    assert 0.1 < device.memory_gb_per_s < 500


@pytest.mark.parametrize(
    ("line", "limited"),
    [
        ("0::/job/step", "sys/fs/cgroup/job/memory.max"),
        ("4:cpu,memory:/job/step", "sys/fs/cgroup/memory/job/memory.limit_in_bytes"),
    ],
)
def test_a_limit_on_the_control_groups_parent_is_the_memory_here(tmp_path: Path, line: str, limited: str) -> None:
    groups, limit = tmp_path / "proc/self/cgroup", tmp_path / limited
    groups.parent.mkdir(parents=True)
    groups.write_text(f"7:cpuset:/elsewhere\n{line}\n")
    step = limit.parent / "step" / limit.name
    step.parent.mkdir(parents=True)
    step.write_text("max\n")
    limit.write_text(f"{2**28}\n")
    assert _memory_bytes(tmp_path) == 2**28


def nvidia_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, cards: str, chosen: str = "") -> None:
    """Put a command on the path that shows some cards, and others when asked by --id."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncase \"$*\" in *--id=*) echo '{chosen}';; *) echo '{cards}';; esac\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


H200 = "143771, 616, NVIDIA H200"


def test_known_gpus_are_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi(monkeypatch, tmp_path, cards=f"{H200}\n{H200}", chosen=H200)
    cluster = detect_cluster()
    assert (cluster.name, cluster.device.name, cluster.devices) == ("here", "h200", 2)
    assert cluster.device.memory_gib == pytest.approx(139.8007, abs=0.001)  # as torch saw that card
    assert unsourced(cluster) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert detect_cluster().devices == 1


@pytest.mark.parametrize("card", ["NVIDIA GH200 480GB", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090"])
def test_an_unknown_gpu_is_named_and_not_taken_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: str
) -> None:
    nvidia_smi(monkeypatch, tmp_path, cards=f"24564, [N/A], {card}")
    with pytest.raises(Mistake, match=f"{card}.*cluster file"):
        detect_cluster()


def test_a_machine_of_different_gpus_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi(monkeypatch, tmp_path, cards=f"{H200}\n81251, [N/A], NVIDIA A100-SXM4-80GB")
    with pytest.raises(Mistake, match="CUDA_VISIBLE_DEVICES"):
        detect_cluster()
