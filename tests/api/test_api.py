"""`import trimaran as tm`: what a notebook gets is what the commands print, and a mistake is a sentence."""

import json
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimaran as tm
from tests.cli.conftest import Command
from trimaran.spec import presets
from trimaran.spec.layout import stage_layers

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = "jean-zay-a100-80gb"


def small(**more: Any) -> tm.Plan:
    return tm.plan("gpt-1b3", on=CLUSTER, gbs=64, nodes=1, **more)


def test_importing_trimaran_imports_nothing_heavy_and_planning_no_torch() -> None:
    """In a fresh process. The seconds are measured by benchmarks/startup.py."""
    heavy = (
        "{name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'scipy', 'pydantic', 'pandas', 'rich'}"
    )
    script = (
        f"import sys, trimaran as tm\nassert not (found := {heavy}), found\n"
        f"tm.plan('gpt-1b3', on='{CLUSTER}', gbs=64, nodes=1).best.job\nassert 'torch' not in sys.modules\n"
        "assert set(tm.__all__) <= set(dir(tm))\nfor name in tm.__all__: getattr(tm, name)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_plan_is_what_the_command_prints(trimaran: Command) -> None:
    asked = ("bloom-176b", "--on", CLUSTER, "--nodes", 48, "--gbs", 2048, "--fix", "tp=8", "--fix", "mbs=1,2")
    plan = tm.plan("bloom-176b", on=CLUSTER, nodes=48, gbs=2048, fix={"tp": 8, "mbs": [1, 2]})
    printed = json.loads(trimaran("plan", *asked, "--json").out)
    assert plan.to_dict() == printed
    assert plan.rows() == printed["layouts"]
    assert list(plan.why) == printed["why"]
    shown = trimaran("plan", *asked).out
    assert plan.title in shown
    for line in (*plan.notes, plan.left_out):
        assert line in shown


def test_a_job_is_planned_and_compared_as_the_command_does(trimaran: Command) -> None:
    file = EXAMPLES / "jobs" / "bloom-176b.yaml"
    printed = json.loads(trimaran("plan", "--compare", file, "--json").out)
    job = tm.load(file)
    plan = tm.plan(job)
    assert plan.rows() == printed["layouts"]
    assert json.loads(json.dumps(plan.compare(job).row())) == printed["yours"]


def test_estimate_is_what_the_command_prints(trimaran: Command) -> None:
    options = ("--tokens", "366B", "--nodes", "1,16,48", "--price", 1.5, "--mtbf-hours", 10_000)
    printed = json.loads(trimaran("estimate", "bloom-176b", "--on", CLUSTER, "--gbs", 2048, *options, "--json").out)
    estimate = tm.estimate(
        "bloom-176b", on=CLUSTER, gbs=2048, tokens=366e9, nodes=[1, 16, 48], price=1.5, mtbf_hours=10_000
    )
    assert estimate.to_dict() == printed
    assert estimate.fastest.days == min(row["days"] for row in printed["estimates"])
    assert estimate.cheapest.device_hours == min(row["device_hours"] for row in printed["estimates"])


def test_predict_and_explain_agree_with_the_plan_and_the_command(trimaran: Command, tmp_path: Path) -> None:
    best = tm.plan("bloom-176b", on=CLUSTER, nodes=48, gbs=2048).best
    best.job.save(tmp_path / "job.yaml")
    printed = json.loads(trimaran("explain", "job.yaml", "--json").out)
    explained, predicted = tm.explain(tmp_path / "job.yaml"), tm.predict(tmp_path / "job.yaml")
    assert explained.time_seconds() == printed["time_seconds"]
    assert explained.memory_bytes() == printed["memory_bytes"]
    assert explained.to_dict() == {key: value for key, value in printed.items() if key != "timeline"}
    assert f"{explained.seconds:.2f} s a step" in repr(explained)
    assert predicted.seconds == pytest.approx(printed["seconds"]) == pytest.approx(best.seconds)
    assert (predicted.low, predicted.high) == (pytest.approx(best.seconds_low), pytest.approx(best.seconds_high))
    assert predicted.fullest_gib == pytest.approx(best.memory_gib)
    assert predicted.fits


@pytest.mark.parametrize("name", ["job.yaml", "job.json", "deep.folder.yml"])
def test_a_saved_job_loads_equal_and_replaces_the_old_file_whole(name: str, tmp_path: Path) -> None:
    job, file = small().best.job, tmp_path / name
    file.write_text("something older")
    job.save(file)
    assert tm.load(file) == tm.load(str(file)) == tm.load(job) == job
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_job_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(tm.Mistake, match="cannot be written"):
        small().best.job.save(tmp_path / "nowhere" / "job.yaml")
    assert not list(tmp_path.iterdir())


def test_names_files_and_objects_give_the_same_plan(tmp_path: Path) -> None:
    model, cluster = presets.model("gpt-1b3"), presets.cluster(CLUSTER)
    (tmp_path / "model.yaml").write_text(model.to_yaml())
    (tmp_path / "cluster.yaml").write_text(cluster.to_yaml())
    by_name = small(trainer="megatron-lm").rows()
    for model_given, cluster_given in ((model, cluster), (tmp_path / "model.yaml", str(tmp_path / "cluster.yaml"))):
        trainer = presets.trainer("megatron-lm")
        plan = tm.plan(model_given, on=cluster_given, gbs=np.int64(64), nodes=np.int64(1), trainer=trainer)
        assert plan.rows() == by_name


def test_uneven_splits_are_planned_saved_and_explained_alike(tmp_path: Path) -> None:
    """24 layers on 5 stages; embedding and head count as layers there."""
    cluster = presets.cluster(CLUSTER).replace(devices_per_node=5)
    plan = tm.plan("gpt-1b3", on=cluster, gbs=60, nodes=1, fix={"pp": 5, "split": "weighted"})
    best = plan.best
    best.job.save(tmp_path / "job.yaml")
    job = tm.load(tmp_path / "job.yaml")
    assert stage_layers(24, job.layout) == job.stage_layers
    assert len(set(job.stage_layers)) > 1
    assert sum(job.stage_layers) == 24
    assert tm.explain(job).seconds == pytest.approx(best.seconds)
    assert tm.predict(job).seconds == pytest.approx(best.seconds)
    own = plan.compare(job.replace(layout={**job.layout.model_dump(), "split": job.stage_layers}))
    assert own.own.seconds >= best.seconds * (1 - 1e-9)


def test_frames_have_a_row_for_each_layout_and_a_column_for_each_part() -> None:
    plan = small(top=5)
    frame = plan.frame()
    assert len(frame) == len(plan) == 5
    assert list(frame["seconds"]) == [each.seconds for each in plan]
    assert frame.filter(like="shares.").sum(axis=1).tolist() == pytest.approx([1.0] * 5)
    estimate = tm.estimate("gpt-1b3", on=CLUSTER, gbs=64, tokens="1B", nodes=2)
    assert estimate.frame()["layout.dp"].tolist() == [one.step.layout.dp for one in estimate.nodes]


def test_without_pandas_a_frame_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.spec.mistake.find_spec", lambda name: None)
    with pytest.raises(tm.Mistake, match="needs pandas"):
        small().frame()


def test_a_question_without_an_answer_is_an_empty_plan_that_says_why() -> None:
    plan = small(fix={"tp": 5})
    assert not plan
    assert plan.rows() == []
    assert plan.counts.feasible == 0
    assert "tp=5 excludes the last" in plan.impossible
    assert "The nearest that works: tp=4" in plan.impossible
    assert plan.impossible in repr(plan)
    with pytest.raises(tm.Mistake, match="tp=5 excludes the last"):
        _ = plan.best


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "gpt-1b"}, "Did you mean"),
        ({"model": 13}, "model is 13"),
        ({"on": "nowhere"}, "nowhere"),
        ({"on": None}, "on is missing"),
        ({"gbs": None}, "gbs is missing"),
        ({"gbs": 0}, "gbs is 0"),
        ({"gbs": "many"}, "gbs is 'many'"),
        ({"nodes": 1.5}, "nodes is 1.5"),
        ({"nodes": -1}, "nodes is -1"),
        ({"fix": {"tensor": 4}}, "names no field"),
        ({"fix": {"tp": None}}, "tp is a whole number"),
        ({"fix": {"recompute": "some"}}, "recompute is one of"),
        ({"fix": 8}, "fix is 8"),
        ({"ramp": (32, 32)}, "START,INCREMENT,SAMPLES"),
        ({"ramp": 32}, "START,INCREMENT,SAMPLES"),
        ({"precision": "fp4"}, "one of fp32"),
        ({"optimizer": "sgd"}, "one of adam"),
        ({"trainer": "megatron"}, "Did you mean"),
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"top": 0}, "top is 0"),
        ({"model": tm.load("tiny"), "on": CLUSTER}, "leave it out"),
    ],
)
def test_a_wrong_plan_is_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(tm.Mistake) as raised:
        tm.plan(**{"model": "gpt-1b3", "on": CLUSTER, "gbs": 64, **arguments})
    assert said in str(raised.value)
    assert "--" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tokens": None}, "tokens is None"),
        ({"tokens": "lots"}, "tokens is 'lots'"),
        ({"nodes": [0]}, "nodes has '0'"),
        ({"nodes": 2.5}, "nodes is 2.5"),
        ({"watts": "many"}, "watts is 'many'"),
        ({"price": -1}, "price is -1"),
        ({"restart_minutes": None}, "restart_minutes is None"),
    ],
)
def test_a_wrong_estimate_is_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(tm.Mistake) as raised:
        tm.estimate("gpt-1b3", **{"on": CLUSTER, "gbs": 64, **arguments})
    assert said in str(raised.value)


def test_other_mistakes_are_sentences(tmp_path: Path) -> None:
    for wrong in (13, "no-such-job", tmp_path / "none.yaml"):
        for function in (tm.load, tm.predict, tm.explain, tm.train):
            with pytest.raises(tm.Mistake):
                function(wrong)  # type: ignore[operator]
    with pytest.raises(tm.Mistake, match="There is no ledger"):
        tm.Ledger(tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())
    with pytest.raises(AttributeError, match="no attribute 'plant'"):
        _ = tm.plant


def test_a_ledger_is_opened_by_its_path(trimaran: Command, tmp_path: Path) -> None:
    assert trimaran("import", EXAMPLES / "notes" / "fugaku-30b.md", "--ledger", "few.sqlite").code == 0
    with tm.Ledger(str(tmp_path / "few.sqlite")) as ledger:
        trials = ledger.trials()
        assert trials
        assert all(isinstance(trial, tm.Trial) for trial in trials)
        assert str(len(trials)) in repr(ledger)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags, self.text = set[str](), ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_names_are_escaped_in_a_notebook() -> None:
    hostile = '<script>alert("1")</script>&<img src=x onerror=alert(1)>'
    model = presets.model("gpt-1b3").replace(name=hostile)
    cluster = presets.cluster(CLUSTER).replace(name=hostile)
    shown = [
        tm.plan(model, on=cluster, gbs=64, nodes=1),
        tm.plan(model, on=cluster, gbs=64, nodes=1, fix={"tp": 5}),
        tm.estimate(model, on=cluster, gbs=64, tokens="1B", nodes=1),
        tm.explain(tm.load("tiny").replace(name=hostile)),
    ]
    for each in shown:
        page = Tags()
        page.feed(each._repr_html_())
        assert page.tags <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
        assert hostile in page.text


def test_a_plan_shows_itself_as_the_same_table_in_text_and_html() -> None:
    plan = small(top=3)
    page = Tags()
    page.feed(plan._repr_html_())
    assert "table" in page.tags
    for each in plan:
        for cell in each.cells():
            assert cell in repr(plan)
            assert cell in page.text
    assert f"{plan.best.seconds:.2f} s" in repr(plan.best)


def test_train_runs_the_job_in_processes_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Losses of a random model are near ln(vocabulary)."""
    job = tm.load("tiny").replace(steps=2)
    run = tm.train(job)
    assert run.status == "ok"
    assert len(run.losses) == len(run.records) == 2
    assert run.losses[0] == pytest.approx(np.log(job.model.vocab), abs=0.3)
    assert "iteration" in capsys.readouterr().out
    assert run.frame()["loss"].tolist() == run.losses
    quiet = tm.train(job, steps=1, verbose=False)
    assert (quiet.losses, capsys.readouterr().out) == (run.losses[:1], "")


def test_a_job_for_another_machine_is_not_trained() -> None:
    with pytest.raises(tm.Mistake, match="but this machine has"):
        tm.train(small().best.job, verbose=False)


def test_an_interrupted_training_ends_after_an_iteration_and_returns_what_there_is() -> None:
    """As a notebook's stop button does it: SIGINT to the process that called train()."""
    script = "import trimaran as tm; run = tm.train('tiny', steps=100_000); print(run.status, len(run.losses))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(" iteration        2/"):
                process.send_signal(signal.SIGINT)
    status, count = lines[-1].split()
    assert status == "interrupted"
    assert int(count) == sum(line.startswith(" iteration ") for line in lines) >= 2
