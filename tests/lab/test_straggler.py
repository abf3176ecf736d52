"""A trial with a slow rank is marked as such, from its metrics to the table, the results, the audit and learn."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.lab.sweeps import sweep_file, swept, trial_folder
from trimaran.lab.outcome import outcome_of
from trimaran.ledger.audit import corrected
from trimaran.ledger.reading import Reading
from trimaran.ledger.store import Ledger
from trimaran.spec import Job, Outcome, Trial
from trimaran.spec.files import load_job

RESULT: dict[str, Any] = {"how": "exit", "code": 0, "reason": "", "kernel_oom_kills": 0}
SLOW = {"rank": 3, "host": "node7", "slowdown": 1.83}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A trial that our trainer ran, with four measured iterations."""
    folder = tmp_path_factory.mktemp("ran")
    sweep_file(folder)
    swept(folder, "s.yaml")
    return load_job(trial_folder(folder) / "job.yaml"), trial_folder(folder)


def outcome_with(ran: tuple[Job, Path], folder: Path, stragglers: list[dict[str, Any] | None]) -> Outcome:
    """What its metrics mean if these ranks had been slow in the measured iterations."""
    job, trial = ran
    records = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in records if "seconds" in record and not record["warm_up"]]
    lines = [{**measured[0], "warm_up": True, "straggler": SLOW}]
    lines += [{**measured[0], "straggler": straggler} for straggler in stragglers]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return outcome_of(job, folder, RESULT, ours=True)


def test_a_rank_that_is_slow_in_a_third_of_the_iterations_is_named(ran: tuple[Job, Path], tmp_path: Path) -> None:
    outcome = outcome_with(ran, tmp_path, [SLOW] * 9 + [None] * 3)
    assert (outcome.status, outcome.straggler) == (
        "ok",
        "Rank 3 on node7 took 1.8 times as long as its peers in 9 of 12 measured iterations: a slow node, not the"
        " layout.",
    )
    assert outcome_with(ran, tmp_path, [SLOW] * 4 + [None] * 8).straggler is not None
    assert outcome_with(ran, tmp_path, [SLOW] * 3 + [None] * 9).straggler is None
    assert outcome_with(ran, tmp_path, [None] * 4).straggler is None


def test_learn_leaves_it_out_and_audit_and_results_show_it(
    ran: tuple[Job, Path], tmp_path: Path, trimaran: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(ran[1]).parents[3] / "trimaran.sqlite"
    with Ledger.read(path) as ledger:
        (trial,) = ledger.trials()
    slow = outcome_with(ran, tmp_path, [SLOW] * 4)
    marked = trial.model_copy(update={"outcome": slow})
    with Ledger.open(tmp_path / "trimaran.sqlite") as ledger:
        ledger.add([marked])
    assert [(f.check, f.message) for f in corrected(Reading(trials=(marked,))).findings] == [
        ("straggler", slow.straggler)
    ]
    assert "Rank 3 on node7" in trimaran("results").out.replace("\n", " ")
    assert "1 trial was left out: a rank was a straggler" in trimaran("learn", "--on", "here").err
    assert "left out: a rank" not in trimaran("learn", "--on", "here", "--with-stragglers").err


def test_a_row_of_an_older_ledger_has_none(ran: tuple[Job, Path]) -> None:
    with Ledger.read(Path(ran[1]).parents[3] / "trimaran.sqlite") as ledger:
        (trial,) = ledger.trials()
    older = trial.to_dict()
    del older["outcome"]["straggler"]
    assert Trial.from_json(json.dumps(older), trusted=True) == trial
