"""torchtitan's logs: the time of a step follows from tokens per second and device, or from the clock."""

import statistics
from pathlib import Path

import pytest

from trimaran.ledger.logs import read_torchtitan
from trimaran.ledger.reading import Reading

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
BATCH = "Training starts at step 1, with local batch size 8, global batch size 64, sequence length 2048, total steps 9"
MESH = "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]"


def fixture(name: str) -> Reading:
    with (LOGS / name).open() as log:
        return read_torchtitan(log, name)


def said(text: str, rank: int = 0, clock: str = "15:36:29,000") -> str:
    return f"[rank{rank}]:[titan] 2025-02-20 {clock} - root - INFO - {text}\n"


def step(number: int, tps: str, rank: int = 0, clock: str = "15:36:29,000", loss: str = "7.8774") -> str:
    fields = f"step: {number:2}  loss: {loss}  grad_norm:  1.2345  memory: 61.90GiB(65.16%)  tps: {tps}"
    return said(f"{fields}  tflops: 180.92  mfu: 18.29%", rank, clock)


def test_a_llama_8b_run_on_eight_devices() -> None:
    reading = fixture("torchtitan_llama3_8b.log")
    (trial,) = reading.trials
    setup, outcome = trial.setup, trial.outcome
    rates = [7080, 7082, 7072, 7057, 7051, 7042, 7036, 7033, 6856]  # eleven printed, two are warm-up
    assert reading.unread == ()
    assert outcome.seconds == pytest.approx(8 * 8192 / (statistics.median(rates) * 8))
    # The clock agrees: 93.267 s passed between steps 20 and 100.
    assert outcome.seconds == pytest.approx(93.267 / 80, rel=0.01)
    assert (outcome.iterations, outcome.warmup, outcome.status) == (9, 2, "ok")
    assert (outcome.memory_gib, outcome.last_loss, outcome.tflops) == (pytest.approx(49.59), 6.4719, None)
    assert outcome.tokens_per_second == pytest.approx(statistics.median(rates) * 8)
    assert (setup.layers, setup.hidden, setup.ffn_hidden, setup.heads, setup.kv_heads) == (32, 4096, 14336, 32, 8)
    assert (setup.vocab, setup.size_label, setup.mlp, setup.device) == (128256, "8B", "swiglu", "NVIDIA H200")
    assert (setup.devices, setup.dp, setup.tp, setup.pp, setup.zero) == (8, 8, 1, 1, 3)
    assert (setup.mbs, setup.gbs, setup.seq_len, setup.recompute) == (1, 8, 8192, "selective")


def test_three_axes_and_the_ranks_that_repeat() -> None:
    (trial,) = fixture("torchtitan_3d.log").trials
    setup, outcome = trial.setup, trial.outcome
    rates = [301_092, 299_800, 300_400, 302_000, 298_000]
    assert outcome.seconds == pytest.approx(64 * 2048 / (statistics.median(rates) * 8))
    assert (outcome.tflops, outcome.tflops_formula) == (21.50, "6n-attention")
    assert (setup.dp, setup.tp, setup.pp, setup.devices) == (2, 2, 2, 8)
    assert (setup.mbs, setup.virtual_stages, setup.device) == (1, 2, "NVIDIA H100 80GB HBM3")
    assert outcome.memory_gib == pytest.approx(1.34)  # what the validation took is not the training's


def test_without_a_mesh_the_time_between_the_stamps_of_the_steps_is_used() -> None:
    clocks = ["15:36:00,000", "15:36:20,000", "15:36:44,000", "15:37:10,000"]
    lines = [step(number, "3,123", clock=clock) for number, clock in zip((1, 11, 21, 31), clocks, strict=True)]
    (trial,) = read_torchtitan(lines, "titan.log").trials
    assert trial.outcome.seconds == pytest.approx(
        statistics.median([2.4, 2.6])
    )  # of 2.0, 2.4, 2.6 the first is warm-up
    assert "the time between two steps" in trial.source.note


def test_without_mesh_and_time_stamps_the_time_is_unknown_and_noted() -> None:
    lines = [
        f"step: {number}  loss: 7.1  memory: 1.00GiB(1%)  tps: 3,123  tflops: 9.5  mfu: 1%\n" for number in (1, 2, 3)
    ]
    (trial,) = read_torchtitan(lines, "titan.log").trials
    assert (trial.outcome.seconds, trial.outcome.tflops) == (None, 9.5)
    assert "unknown" in trial.source.note


def test_unlabelled_ranks_that_print_the_same_step_count_once() -> None:
    lines = [step(number, rate)[len("[rank0]:") :] for number in (1, 2, 3) for rate in ("1,000", "1,001", "999")]
    (trial,) = read_torchtitan([said(MESH)[8:], said(BATCH)[8:], *lines], "titan.log").trials
    assert (trial.outcome.iterations, trial.outcome.seconds) == (2, 64 * 2048 / (1000 * 8))


def test_a_second_start_is_a_second_run() -> None:
    first = [said("Starting job: one"), said(MESH), said(BATCH), step(1, "900"), step(2, "1,000"), step(3, "1,000")]
    second = [said("Starting job: two"), said(MESH), said(BATCH), step(1, "900"), step(2, "2,000"), step(3, "2,000")]
    trials = read_torchtitan(first + second, "titan.log").trials
    assert [trial.outcome.seconds for trial in trials] == [64 * 2048 / 8 / 1000, 64 * 2048 / 8 / 2000]
    assert [trial.source.label for trial in trials] == ["run 1", "run 2"]


@pytest.mark.parametrize("rate", ["0", "-5", "nan", "3x1"])
def test_an_impossible_rate_is_listed(rate: str) -> None:
    lines = [said(MESH), said(BATCH), step(1, "1,000"), step(2, rate), step(3, "1,000")]
    reading = read_torchtitan(lines, "titan.log")
    assert [unread.line for unread in reading.unread] == [4]
    assert reading.trials[0].outcome.seconds == 64 * 2048 / 8 / 1000


def test_an_out_of_memory_before_the_first_step_is_an_outcome() -> None:
    oom = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    (trial,) = read_torchtitan(
        [said(MESH), said(BATCH), "[rank3]: Traceback (most recent call last):\n", oom], "t"
    ).trials
    assert (trial.outcome.status, trial.setup.devices, trial.setup.gbs) == ("oom", 8, 64)


def test_a_log_truncated_at_any_byte_gives_its_complete_steps_and_no_other() -> None:
    lines = [said(MESH), said(BATCH), *(step(number, "1,000") for number in (1, 2, 3))]
    text = "".join(lines)
    ends = [len("".join(lines[:count])) - 1 for count in (3, 4, 5)]
    for cut in range(len(text) + 1):
        trials = read_torchtitan(text[:cut].splitlines(keepends=True), "cut.log").trials
        counted = [(trial.outcome.iterations or 0) + (trial.outcome.warmup or 0) for trial in trials]
        assert sum(counted) == sum(end <= cut for end in ends), text[:cut][-60:]
