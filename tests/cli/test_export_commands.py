"""export, import of launch files, and plan --compare, as a user types them."""

import json
import os
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tests.cli.conftest import Command
from trimaran.cli.export import Target
from trimaran.export.formats import TARGETS
from trimaran.spec.files import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOOM = EXAMPLES / "jobs" / "bloom-176b.yaml"
TR11 = Path(__file__).parents[1] / "export" / "fixtures" / "bigscience" / "tr11-176B-ml.slurm"
JEAN_ZAY = ("--on", "jean-zay-a100-80gb")


def test_a_job_goes_to_megatron_deepspeed_and_comes_back(trimaran: Command, tmp_path: Path) -> None:
    ran = trimaran("export", BLOOM, "--to", "megatron-deepspeed", "-o", "bloom")
    assert (ran.code, ran.out) == (0, "bloom: train.sh, ds_config.json, train.slurm\n")
    assert "model.vocab: It is the tokenizer's" in ran.err
    assert os.access(tmp_path / "bloom" / "train.sh", os.X_OK)
    ran = trimaran("import", "bloom/train.sh", *JEAN_ZAY, "-o", "mine.yaml")
    assert ran.code == 0
    assert "dp 8 x tp 4 x pp 12" in ran.out
    assert "not understood: --data-path" in ran.err
    mine, bloom = load_job(tmp_path / "mine.yaml"), load_job(BLOOM)
    assert (mine.layout, mine.batch, mine.cluster) == (bloom.layout, bloom.batch, bloom.cluster)


def test_one_file_is_printed_and_several_get_a_folder_of_the_jobs_name(trimaran: Command, tmp_path: Path) -> None:
    ran = trimaran("export", BLOOM, "--to", "deepspeed-json")
    assert json.loads(ran.out)["train_batch_size"] == 2048
    assert trimaran("export", BLOOM, "--to", "trimaran", "--set", "batch={size: 2048}").code == 0
    assert {file.name for file in (tmp_path / "bloom-176b").iterdir()} == {"job.yaml", "run.sh", "train.slurm"}


def test_export_in_json_has_the_files_and_what_is_lost(trimaran: Command, tmp_path: Path) -> None:
    answer = json.loads(trimaran("export", BLOOM, "--to", "megatron-lm", "--json").out)
    assert set(answer["files"]) == {"train.sh", "train.slurm"}
    assert "model.position" in {each["field"] for each in answer["cannot"]}
    assert not list(tmp_path.iterdir())


def test_blooms_own_script_is_printed_as_a_job(trimaran: Command) -> None:
    ran = trimaran("import", TR11, *JEAN_ZAY, "--set", "cluster.nodes=48")
    job = yaml.safe_load(ran.out)
    assert (job["layout"]["dp"], job["batch"]["ramp"]["samples"]) == (8, 9765625)
    answer = json.loads(trimaran("import", TR11, *JEAN_ZAY, "--json").out)
    assert answer["job"]["layout"]["dp"] == 4  # on the 24 nodes of the file
    assert answer["unread"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("import", TR11), "does not say for which machines; name the cluster with --on"),
        (("import", TR11, EXAMPLES / "notes" / "fugaku-30b.md", *JEAN_ZAY), "import it by itself"),
        (("import", TR11, "--published", *JEAN_ZAY), "import it by itself"),
        (("import", EXAMPLES / "notes" / "fugaku-30b.md", *JEAN_ZAY), "--on is for a launch file"),
        (("import", TR11, "--on", "jean-zay"), "no preset 'jean-zay'"),
        (("export", "tiny", "--to", "megatron"), "megatron-deepspeed"),
        (("export", BLOOM, "--to", "megatron-lm", "-o", "taken"), "taken cannot be made a folder"),
        (
            ("export", BLOOM, "--to", "trimaran", "--set", "batch.ramp={start: 16, increment: 16, samples: 100}"),
            "for trimaran: A batch of 16 is 1 micro batches",
        ),
        (("plan",), "MODEL is missing"),
        (("plan", "gpt-1b3", "--gbs", 64), "--on is missing"),
        (("plan", "--compare", BLOOM, "--gbs", 64), "--gbs is 64, but"),
        (("plan", "gpt-1b3", "--compare", BLOOM), "MODEL is 'gpt-1b3', but"),
        (("plan", "--compare", BLOOM, *JEAN_ZAY), "is a job and names its cluster"),
        (("plan", "--compare", TR11), "name the cluster with --on"),
        (("plan", "--compare", "nothing.yaml"), "There is no file nothing.yaml"),
    ],
)
def test_a_mistake_gets_a_sentence_and_leaves_nothing(
    trimaran: Command, tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    ran = trimaran(*arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_ones_own_layout_is_marked_in_the_plan(trimaran: Command) -> None:
    ran = trimaran("plan", "--compare", BLOOM, "--top", 3)
    assert ran.code == 0
    (own,) = [line for line in ran.out.splitlines() if "◀ yours" in line]
    assert own.split()[2:6] == ["8", "4", "12", "2"]
    assert "Yours. 10" in ran.out
    assert "it loses" in ran.out.split("Yours.")[1]
    tie = json.loads(trimaran("plan", "--compare", BLOOM, "--top", 3, "--json").out)["yours"]["tie"]
    assert ("It is a tie" in ran.out) == tie
    assert "yours |" in trimaran("plan", "--compare", BLOOM, "--top", 3, "--markdown").out


def test_the_plan_of_ones_own_job_in_json(trimaran: Command) -> None:
    answer = json.loads(trimaran("plan", "--compare", TR11, *JEAN_ZAY, "--top", 2, "--json").out)
    yours, best = answer["yours"], answer["layouts"][0]
    assert (yours["dp"], yours["tp"], yours["pp"], yours["micro_batch"]) == (4, 4, 12, 2)
    assert yours["seconds"] == pytest.approx(best["seconds"] * (1 + yours["more_than_best"]))
    assert 1 < yours["rank"] < yours["feasible"] == answer["counts"]["feasible"]
    assert yours["fits"]
    assert yours["seconds_low"] < yours["seconds"] < yours["seconds_high"]


def test_a_plan_saved_and_compared_with_itself_is_the_best(trimaran: Command, tmp_path: Path) -> None:
    question = ("gpt-1b3", *JEAN_ZAY, "--nodes", 1, "--gbs", 64)
    assert trimaran("plan", *question, "--save", "best.yaml").code == 0
    ran = trimaran("plan", "--compare", "best.yaml")
    assert "★ ◀ yours" in ran.out
    assert "the best of" in ran.out


def test_a_layout_that_does_not_fit_is_said_not_to(trimaran: Command, tmp_path: Path) -> None:
    job = load_job(BLOOM)
    (tmp_path / "large.yaml").write_text(job.replace(layout={**job.layout.model_dump(), "recompute": "none"}).to_yaml())
    ran = trimaran("plan", "--compare", "large.yaml", "--top", 3)
    assert ran.code == 0
    assert "does not fit" in ran.out
    assert "if it fitted: it needs" in ran.out


def test_the_command_offers_every_target_there_is() -> None:
    assert set(get_args(Target)) == TARGETS.keys()
