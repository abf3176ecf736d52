"""Jobs among the presets, as a user types them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from trimaran.spec import presets
from trimaran.spec.files import load_job


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> None:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(presets, "detect_here", looked)
    presets.preset.cache_clear()


@pytest.mark.usefixtures("unmeasured")
def test_jobs_are_listed_and_shown_without_measuring_the_machine(trimaran: Command) -> None:
    listed = trimaran("presets").out
    for name in presets.names(presets.JOBS):
        assert f"{name} " in listed
        assert presets.description(presets.JOBS, name) in listed
    assert json.loads(trimaran("presets", "--json").out)["jobs"] == list(presets.names(presets.JOBS))
    assert json.loads(trimaran("presets", "tiny", "--json").out)["cluster"]["preset"] == "here"
    assert "preset: here" in trimaran("presets", "tiny").out


def test_a_job_preset_is_shown_as_a_file_that_means_the_same(trimaran: Command, tmp_path: Path) -> None:
    for file, option in (("mine.yaml", ()), ("mine.json", ("--json",))):
        (tmp_path / file).write_text(trimaran("presets", "gpt-1b3-h200", *option).out)
        assert load_job(file) == load_job("gpt-1b3-h200").replace(name="mine")


def test_a_job_preset_can_be_named_where_a_job_file_can(trimaran: Command) -> None:
    assert json.loads(trimaran("explain", "gpt-1b3-h200", "--json").out)["fits"]
    assert json.loads(trimaran("flops", "gpt-1b3-h200", "--json").out)["tokens_per_step"] == 16 * 2048
    assert "'gpt-1b3-h200'" in trimaran("explain", "gpt-1b3-h20").err
