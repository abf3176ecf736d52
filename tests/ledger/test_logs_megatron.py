"""Megatron's logs: every whole iteration counts once, in its own run; nothing else counts, and nothing is hidden."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.ledger.logs import is_megatron, is_torchtitan, read_megatron, read_torchtitan
from trimaran.ledger.reading import Reading

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"


def line(
    number: int,
    seconds: float,
    *,
    total: int = 100,
    batch: int = 2048,
    loss: str | None = "6.373876E+01",
    unit: str = "s",
    time: str | None = None,
    extra: str = "",
    tail: str = " samples per second: 4.761 | TFLOPs: 97.07 |",
) -> str:
    """Megatron-DeepSpeed's line, written from the format string in the facts; no prefix, no line end."""
    printed = time or (f"{seconds:.2f}" if unit == "s" else f"{seconds * 1000:.1f}")
    text = f" iteration {number:8d}/{total:8d} | consumed samples: {number * batch:12d} |"
    text += f" elapsed time per iteration ({unit}): {printed} | learning rate: 3.787E-06 |"
    text += f" global batch size: {batch:5d} |" + (f" lm loss: {loss} |" if loss else "")
    text += f" loss scale: 4096.0 |{extra} number of skipped iterations: {1:3d} | number of nan iterations: {0:3d} |"
    return text + tail


def read(*lines: str, file: str = "train.log") -> Reading:
    return read_megatron([text + "\n" for text in lines], file)


def fixture(name: str) -> Reading:
    with (LOGS / name).open() as log:
        return read_megatron(log, name)


# --- real formats


def test_a_deepspeed_log_gives_its_setup_and_the_median_after_warm_up() -> None:
    reading = fixture("megatron_deepspeed_176b.log")
    (trial,) = reading.trials
    setup, outcome = trial.setup, trial.outcome
    assert reading.unread == ()
    assert (setup.layers, setup.hidden, setup.ffn_hidden, setup.heads, setup.vocab) == (70, 14336, 57344, 112, 250880)
    assert (setup.dp, setup.tp, setup.pp, setup.devices, setup.mbs, setup.gbs) == (5, 4, 8, 160, 1, 2048)
    assert (setup.zero, setup.precision, setup.recompute, setup.virtual_stages) == (1, "bf16", "full", 1)
    assert (setup.framework, setup.mlp, setup.optimizer, setup.kv_heads) == ("megatron-deepspeed", "gelu", "adam", None)
    used = [430.21, 428.90, 429.55, 431.02, 428.11, 429.84, 430.66]  # eight printed, the first is warm-up
    assert outcome.seconds == statistics.median(used)
    assert (outcome.seconds_low, outcome.seconds_high) == tuple(np.quantile(used, [0.25, 0.75]))
    assert (outcome.iterations, outcome.warmup) == (7, 1)
    assert outcome.tokens_per_second == pytest.approx(2048 * 2048 / 429.84)
    assert outcome.tflops == statistics.median([97.07, 97.37, 97.22, 96.89, 97.55, 97.15, 96.97])
    assert outcome.tflops_formula is None
    assert (outcome.status, outcome.last_loss) == ("ok", 35.0)  # paths named after failures are not failures


def test_memory_is_the_fullest_rank_and_the_fullest_of_each_stage() -> None:
    outcome = fixture("megatron_deepspeed_176b.log").trials[0].outcome
    assert outcome.memory_gib == 62002 / 1024
    stages = (61234, 40110, 40210, 40310, 40410, 40510, 40610, 62002)
    assert outcome.memory_by_stage_gib == tuple(mib / 1024 for mib in stages)


def test_a_megatron_lm_log_of_four_stages() -> None:
    (trial,) = fixture("megatron_lm_345m_pp4.log").trials
    outcome, setup = trial.outcome, trial.setup
    used = [376.9, 379.9, 344.4, 392.7, 380.3, 381.1, 665.5, 392.0, 381.3, 382.2, 383.2, 379.0, 318.1, 405.2, 379.4]
    assert outcome.seconds == pytest.approx(statistics.median([*used, 385.6]) / 1000, rel=1e-12)
    assert (outcome.iterations, outcome.warmup, outcome.skipped, outcome.nan) == (16, 4, 15, 0)
    assert outcome.memory_by_stage_gib == (7766 / 1024, 5498 / 1024, 4170 / 1024, 4522 / 1024)
    assert (setup.framework, setup.vocab, setup.precision, setup.mlp) == ("megatron-lm", 50304, "fp16", "gelu")
    assert (setup.recompute, setup.zero, setup.sequence_parallel) == ("none", 0, False)
    assert "mean of 100 iterations" in trial.source.note
    assert outcome.status == "ok"  # what goes wrong after the training is done is not the run's


def test_a_megatron_lm_log_with_time_stamps_and_throughput() -> None:
    (trial,) = fixture("megatron_lm_moe.log").trials
    assert trial.outcome.seconds == statistics.median([5533.8, 5718.6]) / 1000
    assert (trial.outcome.tflops, trial.outcome.tflops_formula) == (statistics.median([236.0, 228.4]), "model")
    assert (trial.setup.gbs, trial.setup.framework) == (128, "megatron-lm")
    assert trial.source.date == "2024-04-06 02:59:36"


def test_grouped_queries_experts_and_newer_arguments_are_understood() -> None:
    values = {
        "num_attention_heads": 32,
        "group_query_attention": True,
        "num_query_groups": 8,
        "swiglu": True,
        "recompute_granularity": "selective",
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
        "virtual_pipeline_model_parallel_size": 4,
        "num_experts": 8,
        "fp8": "hybrid",
        "bf16": True,
    }
    arguments = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    (trial,) = read(*arguments, line(1, 2.0, tail="")).trials
    setup = trial.setup
    assert (setup.kv_heads, setup.mlp, setup.recompute, setup.zero) == (8, "swiglu", "selective", 1)
    assert (setup.sequence_parallel, setup.virtual_stages, setup.precision) == (True, 4, "fp8")
    assert setup.layers is None
    assert "8 experts" in trial.source.note


def test_the_sequence_length_follows_from_samples_and_tokens_consumed() -> None:
    text = line(2, 430.21).replace("| elapsed", "| consumed tokens:      8388608 | elapsed")
    (trial,) = read(text).trials
    assert trial.setup.seq_len == 2048  # 8388608 tokens of 4096 samples
    assert trial.outcome.tokens_per_second == pytest.approx(2048 * 2048 / 430.21)


# --- what is measured


@pytest.mark.parametrize(("iterations", "warmup"), [(1, 0), (2, 1), (9, 1), (10, 2), (24, 4), (25, 5), (100, 5)])
def test_the_first_iterations_are_warm_up(iterations: int, warmup: int) -> None:
    seconds = [1000.0 if number < warmup else 2.0 for number in range(iterations)]
    (trial,) = read(*(line(number + 1, value) for number, value in enumerate(seconds))).trials
    assert (trial.outcome.warmup, trial.outcome.iterations) == (warmup, iterations - warmup)
    assert trial.outcome.seconds_high == 2.0
    assert ("single iteration" in trial.source.note) == (iterations - warmup == 1)


def test_of_a_ramp_up_only_the_last_batch_size_is_measured() -> None:
    ramp = [line(number, 10.0, batch=16 * number) for number in range(1, 6)]
    full = [line(number, seconds, batch=96) for number, seconds in zip(range(6, 10), (90, 30, 31, 33), strict=True)]
    (trial,) = read(*ramp, *full).trials
    assert (trial.outcome.seconds, trial.outcome.iterations, trial.outcome.warmup) == (31.0, 3, 1)
    assert trial.setup.gbs == 96
    assert "from 16 to 96" in trial.source.note


def test_a_nan_loss_is_a_legal_loss() -> None:
    (trial,) = read(line(1, 2.0), line(2, 2.0, loss="NAN")).trials
    assert (trial.outcome.iterations, trial.outcome.last_loss) == (1, None)
    assert "not a finite number" in trial.source.note


@pytest.mark.parametrize("time", ["nan", "0.00", "-3.10", "inf", "4x0.21", "1.2.3", "", "1e999"])
def test_an_impossible_time_is_listed_and_the_rest_is_used(time: str) -> None:
    reading = read(line(1, 2.0), line(2, 0, time=time or " "), line(3, 4.0))
    assert reading.trials[0].outcome.seconds == 4.0
    (unread,) = reading.unread
    assert (unread.file, unread.line) == ("train.log", 2)
    assert "the time per iteration" in unread.why


@pytest.mark.parametrize(
    ("printed", "garbled"),
    [
        ("TFLOPs: 97.07", "TFLOPs: nan"),
        ("TFLOPs: 97.07", "TFLOPs: 97.0.7"),
        ("lm loss: 6.373876E+01", "lm loss: 6.37E+E1"),
        ("global batch size:  2048", "global batch size:  -204"),
        ("skipped iterations:   1", "skipped iterations:   x"),
        ("iteration        2/", "iteration        2b/"),
        ("/     100", "/ 99999999999999999999"),
    ],
)
def test_any_garbled_number_makes_its_line_unread(printed: str, garbled: str) -> None:
    broken = line(2, 3.0).replace(printed, garbled)
    assert broken != line(2, 3.0)
    reading = read(line(1, 2.0), broken, line(3, 4.0))
    assert [unread.line for unread in reading.unread] == [2]
    assert (reading.trials[0].outcome.seconds, len(reading.trials)) == (4.0, 1)


def test_forks_that_print_this_one_and_the_mean_are_read_by_this_one() -> None:
    text = line(1, 0, unit="ms", time="13372.8/13364.7", tail="").replace(
        "| learning", "| throughput per GPU (TFLOP/s/GPU): 567.6/568.0 | learning"
    )
    (trial,) = read("[20251202 09:12:08][rank-7/8][INFO ] [trainer.py:2560] :" + text).trials
    assert (trial.outcome.seconds, trial.outcome.tflops) == (13.3728, 567.6)


# --- who printed, and in which run


@pytest.mark.parametrize("prefix", ["", "[default7]:", "7: ", "[rank7]:", " [2024-04-06 02:59:36]", "\x1b[32m> 3: "])
def test_prefixes_do_not_matter(prefix: str) -> None:
    (trial,) = read(*(prefix + line(number, 2.0) for number in (1, 2, 3))).trials
    assert (trial.outcome.seconds, trial.outcome.iterations) == (2.0, 2)


def test_a_line_repeated_by_other_ranks_counts_once_also_when_they_lag() -> None:
    lines = [line(number, 1.0 + number) for number in (1, 2, 3, 4)]
    ranks = [f"[default7]:{lines[0]}", f"[default7]:{lines[1]}", f"[default3]:{lines[0]}", f"[default7]:{lines[2]}"]
    ranks += [f"[default3]:{lines[1]}", f"[default3]:{lines[2]}", f"[default7]:{lines[3]}", f"[default3]:{lines[3]}"]
    (trial,) = read(*ranks).trials
    assert (trial.outcome.iterations, trial.outcome.seconds) == (3, 4.0)
    assert trial.outcome.skipped == 4


def test_two_ranks_on_one_physical_line_are_separated() -> None:
    memory = "[Rank 3] (after 2 iterations) memory (MB) | allocated: 9.5 | max allocated: 9.5 | reserved: 70.0 | "
    memory += "max reserved: 2048.0"
    glued = line(2, 5.0) + "[default3]:" + line(3, 6.0) + memory
    (trial,) = read("[default7]:" + line(1, 9.0), "[default7]:" + glued, memory + line(4, 7.0)).trials
    assert (trial.outcome.seconds, trial.outcome.iterations, trial.outcome.memory_gib) == (6.0, 3, 2.0)


def test_a_line_truncated_in_the_middle_of_the_file_is_listed() -> None:
    half = line(2, 3.0)[:170]
    reading = read(line(1, 2.0), half + "[default0]:saving checkpoint", line(3, 4.0))
    assert [(unread.line, "truncated" in unread.why) for unread in reading.unread] == [(2, True)]
    assert reading.trials[0].outcome.seconds == 4.0


def test_an_earlier_iteration_another_total_or_new_arguments_begin_a_run() -> None:
    dump = ["---------- arguments ----------", "  hidden_size ............ 512", "------- end of arguments -------"]
    first = [line(number, 1.0) for number in (1, 2, 3)]
    fallen = [line(number, 2.0) for number in (1, 2, 3)]
    other_total = [line(number, 3.0, total=50) for number in (4, 5)]
    new_arguments = [line(number, 4.0, total=50) for number in (6, 7)]
    trials = read(*first, *fallen, *other_total, *dump, *new_arguments).trials
    assert [trial.outcome.seconds for trial in trials] == [1.0, 2.0, 3.0, 4.0]
    assert [trial.source.label for trial in trials] == ["run 1", "run 2", "run 3", "run 4"]
    assert [trial.source.line for trial in trials] == [1, 4, 7, 12]
    assert [trial.setup.hidden for trial in trials] == [None, None, None, 512]
    assert len({trial.id for trial in trials}) == 4


def test_memory_printed_before_the_first_iteration_of_a_restart_is_the_restarts() -> None:
    memory = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5 | reserved: 1.0 | "
    first, second = memory + "max reserved: 1024.0", memory + "max reserved: 3072.0"
    trials = read(first, line(1, 1.0), line(2, 1.0), second, line(1, 2.0), line(2, 2.0)).trials
    assert [trial.outcome.memory_gib for trial in trials] == [1.0, 3.0]


def test_a_log_that_has_grown_or_is_compressed_keeps_the_ids_of_its_trials() -> None:
    lines = [line(number, 1.0) for number in (1, 2, 3)]
    lines += [line(number, 2.0) for number in (1, 2, 3)]
    short = [trial.id for trial in read(*lines[:5], file="a/train.log").trials]
    grown = [trial.id for trial in read(*lines, file="b/train.log.gz").trials]
    assert short == grown
    assert short != [trial.id for trial in read(*lines, file="other.log").trials]


def test_arguments_without_an_outcome_are_listed() -> None:
    reading = read("------- arguments -------", "  hidden_size ........ 512", "> building the model")
    assert reading.trials == ()
    assert [unread.line for unread in reading.unread] == [1]


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_logs_are_recognised_by_content(path: Path) -> None:
    head = path.read_text()
    assert is_megatron(head) == path.name.startswith("megatron")
    assert is_torchtitan(head) == path.name.startswith("torchtitan")


# --- properties

PREFIXES = ["", "[default7]:", "7: ", "[rank7]:", " [2024-04-06 02:59:36]"]
TAILS = [" samples per second: 4.761 | TFLOPs: 97.07 |", " samples per second: 4.761 | shards: 3 | TFLOPs: 97.07 |"]
NOISE = ["time (ms) | fwd: 1.0 | bwd: 2.0", "saving checkpoint at iteration    1000 to /x/oom/", "", "> loading ..."]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[str], list[float]]:
    """The physical lines of one run, and the times that stand in them."""
    unit = draw(st.sampled_from(["s", "ms"]))
    prefix, tail = draw(st.sampled_from(PREFIXES)), draw(st.sampled_from(TAILS))
    hundredths = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
    lines, times = [], []
    for number, value in enumerate(hundredths, 1):
        printed = f"{value / 100:.2f}" if unit == "s" else f"{value / 10:.1f}"
        extra = draw(
            st.sampled_from(["", " grad norm: 1.5 |", " num zeros: 0.0 | params norm: 3.2 |", " new thing: a/b |"])
        )
        loss = draw(st.sampled_from([None, "1.5E+00", "NAN"]))
        text = line(number, 0, unit=unit, time=printed, extra=extra, loss=loss, tail=tail)
        times.append(float(printed) if unit == "s" else float(printed) / 1000.0)
        lines.append(prefix + text)
        if draw(st.booleans()):
            lines[-1] = lines[-1] + "[default3]:" + text if draw(st.booleans()) else lines[-1]
            lines.append("[default3]:" + text)
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(NOISE)))
    return lines, times


@given(logs())
@settings(max_examples=150)
def test_whatever_the_ranks_and_fields_the_median_is_that_of_the_printed_times(
    log: tuple[list[str], list[float]],
) -> None:
    lines, times = log
    reading = read(*lines)
    (trial,) = reading.trials
    count = len(times)
    used = times[0 if count == 1 else min(5, max(1, count // 5)) :]
    assert reading.unread == ()
    assert trial.outcome.seconds == np.median(used)
    assert (trial.outcome.seconds_low, trial.outcome.seconds_high) == tuple(np.quantile(used, [0.25, 0.75]))
    assert trial.outcome.iterations == len(used)


def test_a_log_truncated_at_any_byte_gives_its_complete_lines_and_no_other() -> None:
    lines = ["[default7]:" + line(number, 1.5 * number) for number in (1, 2, 3)]
    text = "\n".join(lines) + "\n"
    ends = [len("\n".join(lines[:count])) for count in (1, 2, 3)]
    for cut in range(len(text) + 1):
        reading = read_megatron(text[:cut].splitlines(keepends=True), "cut.log")
        whole = sum(end <= cut for end in ends)
        read_lines = [(trial.outcome.iterations or 0) + (trial.outcome.warmup or 0) for trial in reading.trials]
        assert sum(read_lines) == whole, text[:cut][-60:]
        begun = text[:cut].rpartition("\n")[2]
        if f"iteration {whole + 1:8d}" in begun:
            assert [unread.line for unread in reading.unread] == [whole + 1]
        else:
            assert reading.unread == ()


@given(logs(), st.integers(0, 10**6))
@settings(max_examples=100)
def test_truncating_a_log_anywhere_never_raises_nor_invents_an_iteration(
    log: tuple[list[str], list[float]], place: int
) -> None:
    lines, times = log
    text = "\n".join(lines)
    reading = read_megatron(text[: place % (len(text) + 1)].splitlines(keepends=True), "cut.log")
    for trial in reading.trials:
        assert (trial.outcome.iterations or 0) + (trial.outcome.warmup or 0) <= len(times)
        assert trial.outcome.seconds_low is not None
        assert min(times) <= trial.outcome.seconds_low


FRAGMENTS = [
    "iteration        5/     100 |",
    " elapsed time per iteration (s): 4.5 |",
    " elapsed time per iteration (ms): 0 |",
    " lm loss: NAN |",
    " number of nan iterations:   0 |",
    " TFLOPs: 97.07 |",
    " TFLOPs: 1e400 |",
    "[Rank 3] (after 2 iterations) memory (MB)",
    " memory (MB) | max reserved: 12.0",
    "------ arguments ------\n",
    "  hidden_size ........ 99999999999999999999",
    "  zero_stage ......... 7\n",
    "  world_size ......... 8\n",
    "  pipeline_model_parallel_size .... 3\n",
    "Traceback (most recent call last):\n",
    "CUDA out of memory.",
    "step:  1  loss:  2.5",
    "  memory: 1.2GiB(3%)  tps: 9,000  tflops: 1.0  mfu: 2.00%",
    "Building 2-D device mesh with ['dp', 'tp'], [0, 2]\n",
    "local batch size 0, global batch size 8, sequence length 0\n",
    "[default1]:",
    "\x1b[31m",
    "\n",
    "|",
    " ",
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30))
@settings(max_examples=400)
def test_no_text_makes_a_reader_raise(pieces: list[str]) -> None:
    lines = "".join(pieces).splitlines(keepends=True)
    assert all(trial.source.line for trial in read_megatron(lines, "noise.log").trials)
    assert all(trial.source.line for trial in read_torchtitan(lines, "noise.log").trials)
