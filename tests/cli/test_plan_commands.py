"""plan, explain, shape and fit as a user types them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from trimaran.spec.files import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOOM = ("plan", "bloom-176b", "--on", "jean-zay-a100-80gb", "--nodes", 48, "--gbs", 2048)
SMALL = ("plan", "gpt-1b3", "--on", "jean-zay-a100-80gb", "--nodes", 1, "--gbs", 64)


def test_plan_prints_the_notes_table_with_reasons(trimaran: Command) -> None:
    ran = trimaran(*BLOOM)
    assert ran.code == 0
    header = next(line for line in ran.out.splitlines() if "Nodes" in line)
    assert header.split()[:10] == ["Nodes", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs"]
    for word in ("ZeRO", "recompute", "schedule", "interval", "bubble", "limited by", "★", "Why this one.", "176.2B"):
        assert word in ran.out
    assert "layouts fit, of" in ran.out


def test_plan_in_json_ranks_by_seconds_within_the_interval(trimaran: Command) -> None:
    answer = json.loads(trimaran(*BLOOM, "--top", 30, "--json").out)
    assert answer["parameters"] == 176_247_271_424  # the released model's count
    seconds = [row["seconds"] for row in answer["layouts"]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 30
    for row in answer["layouts"]:
        assert row["seconds_low"] < row["seconds"] < row["seconds_high"]
        assert row["dp"] * row["tp"] * row["pp"] == row["devices"] == 8 * row["nodes"]
        assert sum(row["shares"].values()) == pytest.approx(1)
    assert len({(r["dp"], r["tp"], r["pp"], r["micro_batch"]) for r in answer["layouts"]}) == 30
    assert len(answer["why"]) == 3
    counts = answer["counts"]
    assert counts["considered"] == counts["refused"] + counts["memory"] + counts["feasible"]


def test_plan_with_fixed_fields_and_variants(trimaran: Command) -> None:
    ran = trimaran(*SMALL, "--fix", "tp=2,4", "--fix", "recompute=full", "--variants", "--top", 50, "--json")
    rows = json.loads(ran.out)["layouts"]
    assert {row["tp"] for row in rows} <= {2, 4}
    assert {row["recompute"] for row in rows} == {"full"}
    assert len({(r["dp"], r["tp"], r["pp"], r["micro_batch"]) for r in rows}) < len(rows)


def test_plan_obeys_every_batch_of_a_ramp_up(trimaran: Command) -> None:
    ran = trimaran(*BLOOM, "--ramp", "192,16,9765625", "--top", 200, "--json")
    for row in json.loads(ran.out)["layouts"]:
        assert 16 % (row["dp"] * row["micro_batch"]) == 0  # 192, 208, 224, ... up to 2048


def test_plan_saves_jobs_that_load(trimaran: Command, tmp_path: Path) -> None:
    saved = json.loads(trimaran(*SMALL, "--top", 3, "--save", "jobs", "--json").out)
    files = sorted((tmp_path / "jobs").iterdir())
    assert len(files) == 3
    for path, row in zip(files, saved["layouts"], strict=True):
        job = load_job(path)
        assert job.layout.to_dict() == {name: row[name] for name in job.layout.to_dict()}
        assert (job.model.name, job.batch.size, job.cluster.nodes) == ("gpt-1b3", 64, 1)
    assert trimaran(*SMALL, "--save", "best.yaml").code == 0
    assert load_job(tmp_path / "best.yaml") == load_job(files[0])
    assert trimaran("explain", "best.yaml").code == 0


def test_plan_in_markdown_is_read_back_by_import(trimaran: Command, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("# 1.3B\n\n" + trimaran(*SMALL, "--top", 4, "--markdown").out)
    read = json.loads(trimaran("import", "plan.md", "--json").out)
    assert read["count"] == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--nodes", 0), "nodes is 0, but training needs at least 1 node."),
        (("--nodes", -3), "nodes is -3"),
        (("--gbs", 0), "gbs is 0, but a step needs at least 1 sample."),
        (("--fix", "tp=0"), "tp is a whole number from 1 to 10,000,000"),
        (("--fix", "tensor=4"), "names no field of a layout"),
        (("--fix", "zero=4"), "from 0 to 3"),
        (("--fix", "schedule=fast"), "schedule is one of gpipe"),
        (("--fix", "tp=5"), "tp=5 excludes the last"),
        (("--ramp", "32,32"), "START,INCREMENT,SAMPLES"),
        (("--ramp", "3,2,1000"), "never reaches 64 exactly"),
        (("--precision", "fp4"), "one of fp32, fp16, bf16, fp8"),
        (("--precision", "fp8"), "has no fp8, only"),
        (("--optimizer", "sgd"), "one of adam, fused-adam, adam-8bit"),
        (("--trainer", "megatron"), "Did you mean"),
        (("--on", "jean-zay"), "Did you mean"),
        (("--save", "/proc/nowhere/jobs"), "cannot be written"),
    ],
)
def test_a_wrong_plan_is_a_sentence(trimaran: Command, change: tuple[str, object], said: str) -> None:
    ran = trimaran(*SMALL, *change)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.startswith("trimaran: ")
    assert ran.err.count("\n") == 1


def test_a_model_too_large_for_the_nodes_names_the_nodes_it_needs(trimaran: Command) -> None:
    ran = trimaran("plan", "gpt3-175b", "--on", "jean-zay-a100-80gb", "--nodes", 1, "--gbs", 512)
    assert ran.code == 2
    assert "GiB" in ran.err
    needed = int(ran.err.split("nodes=")[1].rstrip(".\n"))
    assert trimaran("plan", "gpt3-175b", "--on", "jean-zay-a100-80gb", "--nodes", needed, "--gbs", 512).code == 0


def test_explain_shows_memory_time_and_a_pipeline(trimaran: Command) -> None:
    ran = trimaran("explain", EXAMPLES / "jobs" / "bloom-176b.yaml")
    assert ran.code == 0
    for words in (
        "first stage",
        "middle stage",
        "last stage",
        "optimizer states",
        "logits",
        "█",
        "stage  0",
        "stage 11",
    ):
        assert words in ran.out
    answer = json.loads(trimaran("explain", EXAMPLES / "jobs" / "bloom-176b.yaml", "--json").out)
    assert sum(answer["time_seconds"].values()) == pytest.approx(answer["seconds"])
    for stage in answer["memory_bytes"].values():
        assert sum(value for name, value in stage.items() if name != "total") == pytest.approx(stage["total"])
    assert answer["memory_bytes"]["middle"]["logits"] == 0
    # 70 layers and two embeddings of 14336 x 250880 over 12 stages of 4 ranks, 2 bytes each.
    layer, embedding = 12 * 14336**2, 14336 * 250880
    assert answer["memory_bytes"]["first"]["weights"] == pytest.approx((5 * layer + embedding) / 4 * 2, rel=0.01)
    ends = [span["end"] for span in answer["timeline"]["spans"]]
    assert max(ends) > 0


def test_explain_draws_no_pipeline_where_there_is_none(trimaran: Command) -> None:
    assert trimaran(*SMALL, "--fix", "pp=1", "--save", "one.yaml").code == 0
    ran = trimaran("explain", "one.yaml")
    assert "only stage" in ran.out
    assert "Pipeline" not in ran.out


def test_shape_explains_why_14400_is_slow(trimaran: Command) -> None:
    widths = ("--hidden", 13824, "--hidden", 14336, "--hidden", 14400, "--heads", 64)
    command = ("shape", "--params", "200B", "--on", "jean-zay-a100-80gb", "--gbs", 2048, "--tp", 8, "--vocab", 250880)
    ran = trimaran(*command, *widths, "--trainer", "megatron-deepspeed-2022", "--json")
    rows = json.loads(ran.out)
    best = {}
    for row in rows:
        best.setdefault(row["hidden"], row)
    assert best[14400]["seconds_per_billion"] > best[13824]["seconds_per_billion"]
    assert best[14400]["seconds_per_billion"] > best[14336]["seconds_per_billion"]
    flaws = " ".join(argument["text"] for argument in best[14400]["arguments"] if not argument["good"])
    assert "1800 is not a multiple of 64" in flaws
    assert "225 is not a multiple of 8" in flaws
    words = trimaran(*command, *widths, "--trainer", "megatron-deepspeed-2022").out
    assert "✗ hidden 14400/8 = 1800" in words


@pytest.mark.parametrize("cluster", ["jean-zay-v100-32gb", "jean-zay-a100-80gb"])
def test_fit_finds_the_fewest_nodes_for_175b(trimaran: Command, cluster: str) -> None:
    answer = json.loads(trimaran("fit", "gpt3-175b", "--on", cluster, "--json").out)
    assert answer["parameters"] == pytest.approx(175e9, rel=0.01)
    assert answer["tokens_per_second"] == pytest.approx(2048 * 2048 / answer["best"]["seconds"])
    too_few = ("plan", "gpt3-175b", "--on", cluster, "--gbs", 2048, "--nodes", answer["nodes"] - 1)
    assert trimaran(*too_few).code == 2
    assert f"needs at least {answer['nodes']} nodes" in trimaran("fit", "gpt3-175b", "--on", cluster).out


def test_fit_finds_the_largest_model_of_one_node(trimaran: Command) -> None:
    ran = trimaran("fit", "--on", "jean-zay-a100-80gb", "--nodes", 1)
    assert "The largest model on 1 node of jean-zay-a100-80gb is" in ran.out
    assert "tokens per second" in ran.out
    answer = json.loads(trimaran("fit", "--on", "jean-zay-a100-80gb", "--nodes", 1, "--json").out)
    assert answer["parameters"] < answer["too_large"]["parameters"]


@pytest.mark.parametrize(
    "command",
    [
        ("shape", "--params", "many", "--on", "jean-zay-a100-80gb", "--gbs", 64),
        ("shape", "--params", "175B", "--on", "jean-zay-a100-80gb", "--gbs", 64, "--hidden", 0),
        ("shape", "--params", "175B", "--on", "jean-zay-a100-80gb", "--gbs", 64, "--nodes", 1, "--hidden", 12288),
        ("shape", "--params", "1M", "--on", "jean-zay-a100-80gb", "--gbs", 64),
        ("fit", "--on", "jean-zay-a100-80gb", "--aspect", 0),
        ("fit", "gpt3-175b", "--on", "jean-zay-a100-80gb", "--nodes", 1),
        ("fit", "gpt3-175b", "--on", "jean-zay-a100-80gb", "--nodes", 0),
        ("explain", "nowhere.yaml"),
    ],
)
def test_other_wrong_questions_are_sentences(trimaran: Command, command: tuple[object, ...]) -> None:
    ran = trimaran(*command)
    assert ran.code == 2
    assert ran.err.startswith("trimaran: ")
    assert ran.err.rstrip().endswith(".")
