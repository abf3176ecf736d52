"""`trimaran("results", "tp=4")`: the command as a user calls it, in this process, with its exit code and output."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimaran.cli.main import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture
def trimaran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIMARAN_LEDGER", raising=False)
    monkeypatch.setenv("COLUMNS", "240")

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["trimaran", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return call
