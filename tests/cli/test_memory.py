"""`trimaran memory` as a user calls it: the table, JSON, and its error sentences."""

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Command

TWO = ("--set", "layout.pp=2", "--set", "layout.micro_batch=2")


def test_the_parts_add_up_and_the_cost_model_stands_beside_them(trimaran: Command) -> None:
    ran = trimaran("memory", "tiny", "--rank", "1", *TWO, "--json")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    assert sum(part["exact"] for part in answer["parts_bytes"].values()) == answer["peak_bytes"]
    assert answer["predicted_bytes"] == pytest.approx(answer["peak_bytes"], rel=0.05)
    assert answer["stages"] == [{"stage": 1, "layers": [2, 3]}]
    assert (answer["pp_rank"], answer["micro_batches"], answer["micro_batches_run"]) == (1, 8, 4)


def test_the_table_names_rank_stage_and_what_was_left_out(trimaran: Command) -> None:
    shown = trimaran("memory", "tiny", "--rank", "1", *TWO).out
    assert "Rank 1 of 2 (pp 1, dp 0, tp 0) holds stage 1 (layers 2 to 3, head)." in shown
    assert "4 of 8 micro batches were run; the others do not change the peak." in shown
    for part in ("weights", "optimizer", "gradients", "activations", "logits", "working", "buffers", "context"):
        assert f"\n {part}" in shown


def test_what_an_h200_trained_fits_and_what_it_ran_out_with_does_not(trimaran: Command) -> None:
    """Seen there with full recompute: 353 samples train, though the allocator would like more (docs/gpu.md)."""

    def asked(samples: int) -> list[str]:
        changes = f"layout.recompute=full layout.micro_batch={samples} batch.size={samples}".split()
        return ["gpt-1b3-h200", *(word for change in changes for word in ("--set", change))]

    assert "139.8 on the device: fits without the fragments" in trimaran("memory", *asked(353)).out
    assert "of 139.8: fits without the fragments" in trimaran("explain", *asked(353)).out
    assert "of 139.8: does not fit" in trimaran("explain", *asked(354)).out


def test_a_rank_that_is_not_there_gets_a_sentence(trimaran: Command) -> None:
    ran = trimaran("memory", "tiny", "--rank", "2", *TWO)
    assert (ran.code, ran.err) == (2, "trimaran: There is no rank 2: this layout has ranks 0 to 1.\n")


def test_another_trainers_job_gets_a_sentence(trimaran: Command) -> None:
    ran = trimaran("memory", "tiny", "--set", "trainer=megatron-lm")
    assert ran.code == 2
    assert "is for megatron-lm, but the engine is our own trainer; add --set trainer=trimaran" in ran.err


def test_without_torch_it_says_what_to_install(trimaran: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = trimaran("memory", "tiny")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'trimaran[train]'" in ran.err


def test_a_plan_for_our_trainer_needs_no_torch() -> None:
    """The cost model knows our engine's memory by formulas; only `memory` and `train` run the engine."""
    code = (
        "import sys\nsys.argv = 'trimaran plan gpt-1b3 --on hgx-h200 --gbs 64'.split()\n"
        "from trimaran.cli.main import run\ntry:\n    run()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "gpt-1b3" in ran.stdout
