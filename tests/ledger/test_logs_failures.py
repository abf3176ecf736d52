"""How a run ended: what PyTorch, torchrun and SLURM say after the last iteration, and only there."""

import pytest

from trimaran.ledger.logs import read_megatron
from trimaran.spec import Trial

DUMP = [
    "------------------------ arguments ------------------------",
    "  hidden_size ..................................... 8192",
    "  save ............................................ /scratch/RuntimeError: CUDA out of memory. Tried/run",
    "  tensor_model_parallel_size ...................... 4",
    "-------------------- end of arguments ---------------------",
]
OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.10 GiB. GPU 0 has a total capacity of 39 GiB"
)
OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 31.75 GiB total capacity; 30.1 GiB used)"
)
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:481] [Rank 65] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1559, "
    "OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=1800000) ran for 1800441 milliseconds before timing out."
)
EXIT = (
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 71) of binary: python"
)
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "pretrain_gpt.py", line 231, in <module>',
    "    pretrain(train_valid_test_datasets_provider, model_provider)",
    "AssertionError: number of layers must be divisible by the pipeline size",
]
TIME_LIMIT = "slurmstepd: error: *** STEP 17109804.0 ON r7i1n3 CANCELLED AT 2022-03-01T04:10:11 DUE TO TIME LIMIT ***"


def iteration(number: int) -> str:
    return (
        f"[default7]: iteration {number:8d}/     100 | consumed samples: {number * 64:12d} | "
        f"elapsed time per iteration (ms): 2500.0 | learning rate: 1.000E-04 | global batch size:    64 | "
        f"lm loss: 5.0E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def trials(*lines: str) -> tuple[Trial, ...]:
    return read_megatron([line + "\n" for line in lines], "train.log").trials


@pytest.mark.parametrize("label", ["", "[default3]:", "[rank3]: ", "3: "])
@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ([OOM], "oom", "OutOfMemoryError"),
        ([OLD_OOM], "oom", "CUDA out of memory"),
        (["slurmstepd: error: Detected 1 oom_kill event in StepId=17109804.0."], "oom", "oom_kill"),
        ([WATCHDOG], "hang", "Watchdog caught collective operation timeout"),
        (TRACEBACK, "fail", "AssertionError: number of layers"),
        ([EXIT], "fail", "exitcode: 1"),
        ([TIME_LIMIT], "timeout", "TIME LIMIT"),
    ],
)
def test_the_message_of_a_failure_decides_the_outcome(label: str, words: list[str], status: str, reason: str) -> None:
    (trial,) = trials(*DUMP, *(label + word for word in words))
    assert trial.outcome.status == status
    assert reason in trial.outcome.reason
    assert label.strip() == "" or not trial.outcome.reason.startswith(label.strip())
    assert (trial.outcome.seconds, trial.outcome.iterations) == (None, None)
    assert trial.setup.hidden == 8192


def test_a_run_that_fails_later_keeps_what_it_measured() -> None:
    (trial,) = trials(*DUMP, iteration(1), iteration(2), iteration(3), OOM)
    assert (trial.outcome.status, trial.outcome.seconds, trial.outcome.iterations) == ("oom", 2.5, 2)


def test_what_a_run_survives_is_not_its_end() -> None:
    (trial,) = trials(*DUMP, iteration(1), *TRACEBACK, OOM, iteration(2), iteration(3))
    assert (trial.outcome.status, trial.outcome.reason) == ("ok", "")


def test_one_ranks_oom_explains_the_other_ranks_timeouts_and_exit_codes() -> None:
    (trial,) = trials(*DUMP, iteration(1), EXIT, WATCHDOG, *TRACEBACK, "[default5]:" + OOM)
    assert (trial.outcome.status, trial.outcome.reason.startswith("torch.cuda.OutOfMemoryError")) == ("oom", True)


def test_of_a_hang_and_a_crash_the_first_is_the_cause() -> None:
    assert trials(*DUMP, WATCHDOG, *TRACEBACK)[0].outcome.status == "hang"
    assert trials(*DUMP, *TRACEBACK, WATCHDOG, EXIT)[0].outcome.status == "fail"


def test_tracebacks_of_two_ranks_written_over_each_other_end_in_the_first_exception() -> None:
    ranks = [f"[default{rank}]:{text}" for text in TRACEBACK for rank in (1, 2)]
    (trial,) = trials(*DUMP, *ranks)
    assert trial.outcome.reason == TRACEBACK[-1]


@pytest.mark.parametrize(
    "harmless",
    [
        "loading checkpoint from /scratch/CUDA out of memory/iter_100",
        "saving to /runs/OutOfMemoryError: retry/exitcode: 1",
        "> data path: /corpora/out of memory tales/text_document",
        " using the watchdog timeout of /etc/watchdog",
        "wandb: run 'after CUDA out of memory fix' synced to /wandb",
        "max_tokens_to_oom: 12000, room for all",
        "all processes ended with exitcode: 0",
    ],
)
def test_messages_inside_paths_and_names_are_not_failures(harmless: str) -> None:
    (trial,) = trials(*DUMP, iteration(1), iteration(2), harmless)
    assert (trial.outcome.status, trial.outcome.reason) == ("ok", "")


def test_each_run_of_a_file_has_its_own_end() -> None:
    failed = [*DUMP, OOM]
    measured = [*DUMP, iteration(1), iteration(2)]
    found = trials(*failed, *measured, *failed, *measured, WATCHDOG)
    assert [trial.outcome.status for trial in found] == ["oom", "ok", "oom", "hang"]
    assert len({trial.id for trial in found}) == 4
    assert [trial.source.line for trial in found] == [6, 12, 19, 25]
