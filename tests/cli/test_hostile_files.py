"""What once gave a traceback in the readers of tables, logs and launch files; tests.ledger.fuzz searches for more."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command

HEADER = "framework,device,nodes,devices,layers,hidden,gbs,dp,tp,pp,mbs,sec_per_it"
ROW = "megatron-lm,a100-80gb,1,8,24,2048,64,1,2,4,1,2.5"
TABLE = "| Nodes | TP | PP | MBS | Sec/it |\n| --: | --: | --: | --: | --: |\n| 1 | 2 | 4 | 1 | 3.5 |\n"
SCRIPT = (
    "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --micro-batch-size 1"
    " --num-attention-heads 16 --seq-length 2048 --train-samples 100000 --bf16 FLAGS\n"
)
BATCH = "--global-batch-size 512 --deepspeed --zero-stage 1"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("cr.csv", f"{HEADER}\n{ROW[:30]}\r{ROW[30:]}\n", "cr.csv:2 has 6 values under 12 columns"),
        ("cr-header.csv", f"{HEADER[:40]}\r{HEADER[40:]}\n{ROW}\n", "cr-header.csv"),
        ("huge.csv", f"{HEADER}\n{ROW.replace(',24,', ',' + '9' * 5000 + ',')}\n", "column layers"),
        ("inf.csv", f"{HEADER}\n{ROW.replace('2.5', 'inf')}\n", "column sec_per_it, is inf"),
        ("vocabulary.md", f"NLAYERS=24 NHIDDEN=2048 VOCAB_SIZE=0\n\n{TABLE}", "vocabulary.md:5: vocab is 0"),
    ],
)
def test_a_table_that_cannot_be_is_a_sentence(
    trimaran: Command, tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    for command in (("score", name), ("import", name), ("predict", name, "-o", "out.csv")):
        if command[0] == "predict" and name.endswith(".md"):
            continue
        ran = trimaran(*command)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_cr_alone_ends_a_line_of_a_csv(trimaran: Command, tmp_path: Path) -> None:
    """As spreadsheets of old Macs wrote them."""
    (tmp_path / "mac.csv").write_bytes(f"{HEADER}\r{ROW}\r{ROW}\r".encode())
    assert "mac.csv: 2 trials" in trimaran("import", "mac.csv").out


def test_numbers_beyond_all_bounds_in_prose_are_no_statement(trimaran: Command, tmp_path: Path) -> None:
    perl = "perl -le '$ng=" + "9" * 400 + "; $sp=1; print $ng*1e300*1e300 / $sp'"
    (tmp_path / "notes.md").write_text(f"GBS={'9' * 5000} --num-layers {'9' * 5000}\n\n`{perl}`\n\n{TABLE}")
    ran = trimaran("import", "notes.md")
    assert (ran.code, "notes.md: 1 trials" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (f"{BATCH} --rampup-batch-size 32 0 100000", "ramp.increment is 0"),
        (f"{BATCH} --rampup-batch-size 32 32 nan", "--rampup-batch-size is '32 32 nan'"),
        ("--step-batch-size-schedule 0:32,1.2.3:64", "--step-batch-size-schedule has '1.2.3:64'"),
        ("--seq-length 0 --step-batch-size-schedule 0:32,1B:64", "seq_len is 0"),
        ("--global-batch-size ²", "--global-batch-size is '²', but must be a number"),
        ("--global-batch-size " + "9" * 5000, "--global-batch-size is '999"),
        (f"{BATCH} --fp16 --loss-scale-window inf", "--loss-scale-window is 'inf', but must be a number"),
    ],
)
def test_a_launch_script_that_cannot_be_is_a_sentence(
    trimaran: Command, tmp_path: Path, flags: str, words: str
) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT.replace("FLAGS", flags))
    ran = trimaran("import", "train.sh", "--on", "selene")
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_ramp_up_of_a_trillion_samples_is_read_without_walking_it(trimaran: Command, tmp_path: Path) -> None:
    flags = f"{BATCH} --rampup-batch-size 8 8 1000000000000"
    (tmp_path / "train.sh").write_text(SCRIPT.replace("100000 --bf16", "8000000000 --bf16").replace("FLAGS", flags))
    ran = trimaran("import", "train.sh", "--on", "selene")
    assert ran.code == 0
    assert "steps: 1000000000\n" in ran.out  # the batch stays 8 for the first 10^12 / 63 samples
