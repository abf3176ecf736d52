"""Whatever text a Job holds, an exported script runs its trainer and nothing else, and passes the text on unchanged."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.export.hostile import CANARY, VARIABLE, Sandbox, fill, places, texts, victim
from trimaran.export.adapt import adapt_job
from trimaran.export.formats import TARGETS
from trimaran.export.launch_script import read_names
from trimaran.export.megatron_flags import path_word
from trimaran.spec import Job, Mistake, presets

VICTIM = victim()
PLACES = places(VICTIM)
PLAIN = {target: export(VICTIM).files for target, export in TARGETS.items()}


def test_every_kind_of_text_in_a_job_is_found() -> None:
    assert {
        *("name", "model.name", "model.source", "trainer.name", "trainer.sources[]"),
        *("cluster.name", "cluster.sources{}", "cluster.sources[]", "cluster.device.name", "cluster.device.sources{}"),
        *("cluster.inside.name", "cluster.between.source", "cluster.conditions.name", "cluster.conditions.until"),
        *("cluster.constants{}", "cluster.probed{}", "data.source", "data.source{}", "saving.folder"),
        *("environment{}", "environment[]"),
    } <= set(PLACES)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-deepspeed"])
def test_a_new_line_in_the_clusters_name_does_not_leave_its_comment(target: str, tmp_path: Path) -> None:
    job = VICTIM.replace(cluster=VICTIM.cluster.replace(name=f"big\ntouch {CANARY}\n#").model_dump())
    sandbox = Sandbox(tmp_path, TARGETS[target](job).files)
    sandbox.call(sandbox.folder / "train.sh")
    assert not (sandbox.folder / CANARY).exists()


@settings(  # shrinking runs scripts for minutes
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data())
def test_no_text_of_a_job_runs_and_each_arrives_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    job = fill(VICTIM, lambda path: data.draw(texts, path), lambda path, kinds: data.draw(st.sampled_from(kinds), path))
    for target, export in TARGETS.items():
        files = export(job).files
        sandbox = Sandbox(tmp_path_factory.mktemp(target), files)
        for script in sandbox.scripts():
            assert sbatch_options(files[script.name]) == sbatch_options(PLAIN[target][script.name])
            words, environment = sandbox.call(script)
            assert environment.get(VARIABLE, job.environment[VARIABLE]) == job.environment[VARIABLE]
            if words[0] == "python" and "megatron" in target:
                assert environment[VARIABLE] == job.environment[VARIABLE]
                assert values(words, "--save") == values(words, "--load") == [path_word(job.saving.folder or "")]
                assert values(words, "--data-path") == data_words(job)
                assert read_names(files[script.name]) == {"name": job.name, "model.name": job.model.name}
        written = {path.name for path in sandbox.folder.iterdir()}
        assert written - files.keys() == ({"job-7.yaml"} if target == "slurm" else set())
        check_configuration(target, job, sandbox.folder)


def check_configuration(target: str, job: Job, folder: Path) -> None:
    """Files that are read, not run, hold the text unchanged."""
    if target in ("trimaran", "slurm"):
        ours, _ = adapt_job(job, presets.trainer("trimaran"))
        text = (folder / {"trimaran": "job.yaml", "slurm": "job-7.yaml"}[target]).read_bytes().decode()
        assert Job.of(yaml.safe_load(text)) == ours
    if target == "torchtitan":
        stated = tomllib.loads((folder / "train.toml").read_bytes().decode())
        assert stated["job"]["description"] == job.name
        assert stated["shape"]["name"] == job.model.name
        assert stated["checkpoint"]["folder"] == job.saving.folder


def sbatch_options(script: str) -> list[str]:
    """Those that sbatch reads: up to the first command. The name, which is a plain word, is left out."""
    lines = itertools.takewhile(lambda line: line.startswith("#") or not line, script.split("\n"))
    name = re.compile(r"#SBATCH --job-name=[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
    return [line for line in lines if line.startswith("#SBATCH") and not name.fullmatch(line)]


def values(words: list[str], flag: str) -> list[str]:
    """The words from a flag to the next one that the trainer knows."""
    start = words.index(flag) + 1
    return words[start : next(i for i in range(start, len(words)) if words[i] in NEXT[flag])]


NEXT = {"--save": ("--load",), "--load": ("--save-interval",), "--data-path": ("--split",)}


def data_words(job: Job) -> list[str]:
    source = job.data.source
    if isinstance(source, str):
        return [path_word(source)]
    return [word for path, weight in source.items() for word in (str(weight), path_word(path))]


@pytest.mark.parametrize("target", TARGETS)
def test_a_nul_character_is_refused_where_a_script_would_have_to_hold_it(target: str, tmp_path: Path) -> None:
    refused = set()
    for place in PLACES:
        kind = -1 if place == "data.source{}" else 0
        job = fill(
            VICTIM,
            lambda path, place=place: f"a\0b {path}" if path == place else f"text {path}",  # type: ignore[misc]
            lambda _, kinds, kind=kind: kinds[kind],  # type: ignore[misc]
        )
        try:
            files = TARGETS[target](job).files
        except Mistake as mistake:
            refused.add((place, "NUL" in str(mistake)))
        else:
            assert not any("\0" in text for text in files.values())
    in_words = {"data.source", "data.source{}", "saving.folder", "environment[]"}
    expected = {"megatron-lm": in_words, "megatron-deepspeed": in_words, "torchtitan": {"environment[]"}}
    assert refused == {(place, True) for place in expected.get(target, ())}


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-deepspeed", "torchtitan"])
@pytest.mark.parametrize("name", ["LAUNCHER", "IFS", "UID", "RANDOM", "NNODES", "DISTRIBUTED_ARGS"])
def test_a_variable_that_the_script_needs_itself_is_reported_and_left_out(
    target: str, name: str, tmp_path: Path
) -> None:
    """LAUNCHER is run, UID cannot be assigned in bash, and what is assigned to RANDOM is evaluated."""
    value = f"touch {CANARY} a[$(touch {CANARY})]"
    exported = TARGETS[target](VICTIM.replace(environment={name: value, VARIABLE: "set"}))
    sandbox = Sandbox(tmp_path, exported.files)
    for script in sandbox.scripts():
        words, environment = sandbox.call(script)
        if words[0] == "python":
            assert environment[VARIABLE] == "set"
            assert words[1:4] == ["-u", "-m", "torch.distributed.run"]
            assert words[words.index("--nnodes") + 1] == str(VICTIM.cluster.nodes)
    assert not (sandbox.folder / CANARY).exists()
    assert any(name in each.why for each in exported.unsupported if each.field.startswith("environment"))
