"""Hostile and damaged files: a sentence or an answer, never a traceback, and a refused ledger stays as it was."""

from tests.ledger.fuzz import fuzz


def test_no_reader_of_measurements_launch_files_and_data_fails_on_hostile_input() -> None:
    assert fuzz(seed=22, seconds=5) == []
