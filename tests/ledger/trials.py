"""Trials, a Job and older ledgers for the tests of the store."""

import sqlite3
from pathlib import Path
from typing import Any

from trimaran.ledger.schema import APPLICATION_ID, COLUMNS, MIGRATIONS, row
from trimaran.spec import Batch, Job, Layout, Outcome, Setup, Source, Trial, presets


def trial(name: str, *, kind: Any = "csv", status: Any = "ok", **known: Any) -> Trial:
    """A trial of which only what is `known` is known: fields of Setup, Outcome or Source."""

    def part(noun: Any) -> dict[str, Any]:
        return {key: value for key, value in known.items() if key in noun.model_fields}

    return Trial(
        id=name,
        setup=Setup(**part(Setup)),
        outcome=Outcome(status=status, **part(Outcome)),
        source=Source(kind=kind, **part(Source)),
    )


def whole_job() -> Job:
    return Job(
        model=presets.model("gpt-1b3"),
        cluster=presets.cluster("jean-zay-v100-32gb").replace(nodes=1),
        trainer=presets.trainer("megatron-deepspeed-2022"),
        layout=Layout(dp=4),
        batch=Batch(size=64),
        precision="fp16",
    )


def ids(trials: list[Trial]) -> list[str]:
    return [each.id for each in trials]


def old_ledger(path: Path, trials: list[Trial], schema: int = 1) -> None:
    """A ledger as an earlier schema left it."""
    raw = sqlite3.connect(path)
    tables = "".join(MIGRATIONS[:schema])
    raw.executescript(f"{tables} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {schema};")
    values = ", ".join("?" * (len(COLUMNS) + 1))
    raw.executemany(f"INSERT INTO trials VALUES ({values})", [(i, *row(each)) for i, each in enumerate(trials)])
    raw.executemany("INSERT INTO documents VALUES (?, ?)", [(i, each.to_json()) for i, each in enumerate(trials)])
    raw.commit()
    raw.close()
