"""Jobs that ship: possible ones, found by name, and listed without looking at the machine they would run on."""

from pathlib import Path

import pytest

from trimaran.cost.parameters import total_parameters
from trimaran.probe.detect import _memory_bytes
from trimaran.spec import Job, Mistake, presets
from trimaran.spec.files import load_job, save


@pytest.mark.usefixtures("on_two_cores")
@pytest.mark.parametrize("name", presets.names(presets.JOBS))
def test_a_job_preset_is_a_job_without_warnings_and_survives_files(name: str, tmp_path: Path) -> None:
    job = load_job(name)
    assert (job.name, job.warnings()) == (name, [])
    for file in ("job.yaml", "job.json"):
        save(job, tmp_path / file)
        assert load_job(tmp_path / file) == load_job(str(tmp_path / file)) == job
    assert Job.from_json(job.to_json()) == job


def test_the_1b3_job_is_the_gpt_of_that_size_on_one_h200() -> None:
    job = load_job("gpt-1b3-h200")
    assert total_parameters(job.model) == pytest.approx(1.3e9, rel=0.02)
    assert (job.model.layers, job.model.hidden, job.model.heads, job.model.seq_len) == (24, 2048, 16, 2048)
    assert job.model.vocab_rows(tp=1) == 50304  # Megatron's padding of GPT-2's 50257
    assert (job.cluster.device.name, job.cluster.devices) == ("h200", 1)


@pytest.mark.usefixtures("on_two_cores")
def test_the_tiny_job_has_the_whole_machine_for_its_one_process() -> None:
    cluster = load_job("tiny").cluster
    assert (cluster.devices, cluster.device.memory_gib) == (1, 16.0)


def test_the_tiny_job_is_possible_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(presets, "preset", presets.preset.__wrapped__)  # what other tests found here is not asked
    job = load_job("tiny")
    assert job.cluster.devices == job.layout.devices == 1
    assert job.cluster.device.memory_gib <= _memory_bytes() / 2**30


def test_listing_and_describing_jobs_does_not_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> None:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(presets, "detect_here", looked)
    presets.preset.cache_clear()
    assert {"tiny", "gpt-1b3-h200"} <= set(presets.names(presets.JOBS))
    for name in presets.names(presets.JOBS):
        description = presets.description(presets.JOBS, name)
        assert " " in description
        assert description.endswith(".")
        assert "\n" not in description


def test_a_file_goes_before_a_preset_of_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_text(
        "{model: gpt-1b3, cluster: {preset: hgx-h200, nodes: 1}, layout: {dp: 8}, batch: {size: 8}}"
    )
    assert load_job("tiny").cluster.devices == 8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tinny", ["no file tinny", "'tiny'"]),
        ("gpt-1b3", ["no job preset", "'gpt-1b3-h200'"]),
        ("tiny.yaml", ["no file tiny.yaml"]),
        ("jobs/tiny", ["no file jobs/tiny"]),
        (".", ["directory"]),
    ],
)
def test_a_job_that_is_not_there_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (name, Path(name)):
        with pytest.raises(Mistake) as caught:
            load_job(given)
        for word in words:
            assert word in str(caught.value)
