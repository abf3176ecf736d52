"""`trimaran probe` as a user runs it: alone, under torchrun, interrupted; its file is what plans and jobs accept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.cli.conftest import Command
from tests.engine.commands import ENVIRONMENT, TRIMARAN
from tests.probe.commands import finished, probe
from tests.processes import Process, finish, until
from trimaran.spec.files import load_cluster

MODEL = {"name": "little", "layers": 2, "hidden": 128, "heads": 4, "vocab": 512, "seq_len": 128}
Probed = tuple[Path, dict[str, Any]]


def test_a_plan_takes_the_file_and_costs_all_its_ranks(probed: Probed, trimaran: Command) -> None:
    Path("little.yaml").write_text(yaml.safe_dump(MODEL))
    ran = trimaran("plan", "little.yaml", "--on", probed[0], "--gbs", 8, "--json")
    assert ran.code == 0, ran.err
    best = json.loads(ran.out)["layouts"][0]
    assert best["devices"] == 2
    assert best["seconds_low"] < best["seconds"] < best["seconds_high"]


def test_a_job_takes_the_file_and_trains(probed: Probed, tmp_path: Path) -> None:
    cluster = yaml.safe_load(probed[0].read_text())
    job = {"model": MODEL, "cluster": cluster, "layout": {"dp": 2}, "batch": {"size": 4}, "precision": "fp32"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = [*TRIMARAN, "train", str(tmp_path / "job.yaml"), "--set", "steps=1"]
    ran = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr
    assert " iteration        1/       1 " in ran.stdout


def test_every_number_of_the_file_names_its_source(probed: Probed) -> None:
    cluster = load_cluster(str(probed[0]))
    assert cluster.devices_per_node == 2
    for source in (cluster.device.sources["peak_tflops"], cluster.inside.source, cluster.sources["probed"]):
        assert "Measured by `trimaran probe --ranks 2 --quick` on 20" in source
        assert "2 ranks at once, torch 2." in source
    assert {"host", "context_gib", "slack", "nodes", "devices_per_node", "spreads"} <= set(cluster.sources)


def test_gemms_are_as_fast_as_numpys(probed: Probed) -> None:
    """A factor of ten in either direction: another library, fewer processes, a machine with other work to do."""
    side, calls = 1024, 0
    factor = np.random.default_rng(0).standard_normal((side, side), np.float32)
    np.matmul(factor, factor)
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < 0.3:
        np.matmul(factor, factor)
        calls += 1
    numpy_tflops = calls * 2 * side**3 / passed / 1e12
    measured = 2 * probed[1]["cluster"]["device"]["matmul_tflops"]["fp32"]  # two ranks at once
    assert numpy_tflops / 10 < measured < numpy_tflops * 10


def test_all_four_kinds_of_collectives_are_measured(probed: Probed) -> None:
    seen = {(c["kind"], c["ranks"]) for c in probed[1]["measured"]["collectives"]}
    assert seen == {("all-reduce", 2), ("all-gather", 2), ("reduce-scatter", 2), ("send", 2)}
    large = [c for c in probed[1]["measured"]["collectives"] if c["bytes"] > 2**20]
    assert all(0.001 < c["bytes"] / c["seconds"] / 1e9 < 1000 for c in large)


def test_under_torchrun_the_ranks_measure_together_and_one_writes(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trimaran.cli.main"]
    arguments = ["probe", "--quick", "-o", str(file)]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Written to ") == 1
    cluster = load_cluster(str(file))
    assert (cluster.nodes, cluster.devices_per_node) == (1, 2)
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_probe_writes_nothing_and_leaves_no_rank(tmp_path: Path) -> None:
    process = probe("--ranks", "2", "-o", str(tmp_path / "here.yaml"))
    children = wait_for_children(process)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert (process.returncode, out) == (130, "")
    assert err == "trimaran: interrupted; nothing was written.\n"
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    process = probe("--ranks", "2", "-o", str(tmp_path / "here.yaml"))
    os.kill(wait_for_children(process)[1], signal.SIGKILL)
    _, err = finish(process)
    assert process.returncode == 4
    assert err == "trimaran: Rank 1 was killed by SIGKILL (by hand, or by the kernel when memory ran out).\n"
    assert list(tmp_path.iterdir()) == []


def wait_for_children(process: Process, count: int = 2) -> list[int]:
    """The ranks, once all are forked."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(children.read_text().split()) == count, "the start of the ranks")
    return [int(pid) for pid in children.read_text().split()]


MISTAKES = {
    "no ranks": (["--ranks", "0"], "--ranks is 0, but a probe needs at least 1."),
    "no such model": (["--model", "gpt-1b33"], "Did you mean 'gpt-1b3'?"),
    "no folder": (["-o", "nowhere/here.yaml"], "nowhere/here.yaml cannot be written: No such file or directory."),
    "a folder": (["-o", "."], ". is a directory, not a file."),
    "another kind of file": (["-o", "here.txt"], "ends in .yaml or .json"),
}


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_sentence_before_anything_is_measured(
    arguments: list[str], sentence: str, trimaran: Command
) -> None:
    ran = trimaran("probe", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_without_plotly_it_says_what_to_install(trimaran: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    ran = trimaran("probe", "--plot", "probe.html")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'trimaran[report]'" in ran.err


def test_another_number_of_ranks_than_torchruns_is_a_mistake() -> None:
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code, _, err = finished("--ranks", "4", environment=world)
    assert (code, err) == (2, "trimaran: --ranks is 4, but 2 processes were started; leave out --ranks.\n")


def test_a_slower_machine_shows_its_ratio(probed: Probed, trimaran: Command, tmp_path: Path) -> None:
    values = yaml.safe_load(probed[0].read_text())
    values["inside"]["gb_per_s"] *= 0.8
    (tmp_path / "after.yaml").write_text(yaml.safe_dump(values))
    ran = trimaran("probe", "compare", probed[0], "after.yaml", "--json")
    assert ran.code == 0, ran.err
    ratios = {name: numbers["ratio"] for name, numbers in json.loads(ran.out).items()}
    assert ratios.pop("inside.gb_per_s") == pytest.approx(0.8)
    assert {ratio for ratio in ratios.values() if ratio is not None} == {1.0}
    shown = trimaran("probe", "compare", probed[0], "after.yaml").out
    assert next(line for line in shown.splitlines() if "inside.gb_per_s" in line).split()[-1] == "0.80"


def test_a_cluster_that_is_not_there_cannot_be_compared(probed: Probed, trimaran: Command) -> None:
    ran = trimaran("probe", "compare", probed[0], "gone.yaml")
    assert (ran.code, ran.err) == (2, "trimaran: There is no file gone.yaml.\n")
