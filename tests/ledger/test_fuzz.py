"""Hostile and damaged files: a sentence or an answer, never a traceback, and a refused ledger stays as it was."""

from tests.ledger.fuzz import KINDS, fuzz


def test_no_reader_of_measurements_launch_files_and_data_fails_on_hostile_input() -> None:
    assert fuzz(seed=22, seconds=4) == []


def test_the_same_seed_draws_the_same_cases() -> None:
    """So that a failure can be drawn again; zero seconds draw one case of each kind."""
    assert len({kind for kind, _ in KINDS}) >= 15
    assert fuzz(seed=1, seconds=0) == fuzz(seed=1, seconds=0)
