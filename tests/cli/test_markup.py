"""Names and notes are printed as they are: what looks like rich's markup is neither a style nor an error."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from trimaran.ledger.store import Ledger
from trimaran.spec import Outcome, Setup, Source, Trial
from trimaran.spec.files import load_job

NAME = "[red]big[/bold] [/] :fire:"


@pytest.fixture
def folder(trimaran: Command, tmp_path: Path) -> Path:
    """A job, its model and cluster, and a ledger with a trial, all of that name. `trimaran` works in this folder."""
    job = load_job("gpt-1b3-h200")
    job = job.replace(
        name=NAME,
        model=job.model.replace(name=NAME, source=NAME).model_dump(),
        cluster=job.cluster.replace(name=NAME, sources={NAME: NAME}).model_dump(),
    )
    job.save(tmp_path / "job.yaml")
    (tmp_path / "model.yaml").write_text(job.model.to_yaml())
    cluster = job.cluster.replace(nodes=2, probed={NAME: 2.0}, constants={"x": 2.0})
    (tmp_path / "other.yaml").write_text(cluster.replace(constants={"x": 4.0}).to_yaml())
    (tmp_path / "cluster.yaml").write_text(cluster.to_yaml())
    setup = Setup.of_job(job).replace(size_label=NAME, framework=NAME, tp=64)
    trials = [
        Trial(
            id=f"{i}{NAME}",
            setup=setup,
            outcome=Outcome(status="ok", seconds=1.0, reason=NAME),
            source=Source(kind="csv", file=NAME, label=NAME, section=NAME, table=NAME),
        )
        for i in range(2)
    ]
    with Ledger.open(tmp_path / "trimaran.sqlite") as store:
        store.add(trials)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "explain job.yaml",
        "plan model.yaml --on cluster.yaml --gbs 16",
        "plan --compare job.yaml",
        "estimate model.yaml --on cluster.yaml --gbs 16 --tokens 1B",
        "ramp model.yaml --on cluster.yaml --gbs 32 --ramp 16,16,1000",
        "shape --params 1B --on cluster.yaml --gbs 16",
        "memory job.yaml",
        "report --job job.yaml",
        "results --ledger trimaran.sqlite",
        "results --ledger trimaran.sqlite --by size",
        "audit --ledger trimaran.sqlite",
        "probe compare cluster.yaml other.yaml",
    ],
)
def test_a_name_like_markup_is_printed_as_it_is(trimaran: Command, folder: Path, command: str) -> None:
    ran = trimaran(*command.split())
    assert (ran.code, ran.err.strip()) == (0, "")
    assert NAME in ran.out or "report" in command


def test_a_file_named_like_markup_is_imported(trimaran: Command, tmp_path: Path) -> None:
    (tmp_path / "[bold]notes[!").mkdir()
    file = tmp_path / "[bold]notes[!" / "[nothing] :fire:.csv"
    file.write_text("nodes,devices,tp,sec_per_it,device\n1,8,2,3.0,[red]\n")
    ran = trimaran("import", file)
    assert ran.code == 0
    assert str(file) in ran.out
