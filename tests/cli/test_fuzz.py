"""No input, however hostile, makes a command hang or trace back. The campaign calls the same fuzzer for longer."""

import pytest

from tests.cli.conftest import Command
from tests.fuzz import fuzz
from tests.fuzz.cases import KINDS

CALLS = 25  # of each kind


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_gets_an_answer_or_a_sentence(kind: str) -> None:
    assert fuzz(seed=22, seconds=float("inf"), kinds=[kind], calls=CALLS) == []


FOUND = [  # by fuzzing, once
    (("explain", "gpt-1b3-h200", "--set", "layout.pp=99999999999"), ["layout.pp is 99999999999", "10000000"]),
    (("explain", "gpt-1b3-h200", "--set", "cluster.nodes=" + "9" * 400), ["cluster.nodes=999", "40 digits"]),
    (("explain", "gpt-1b3-h200", "--set", "layout.split=" + "[" * 5000), ["layout.split", "levels deep"]),
    (("explain", "gpt-1b3-h200", "--set", "model.rotary_base=.nan"), ["model.rotary_base is nan", "finite"]),
    (("explain", "gpt-1b3-h200", "--set", "cluster.constants.layer_us=.inf"), ["layer_us is inf", "finite"]),
    (("explain", "gpt-1b3-h200", "--set", "cluster.constants.gemm_efficiency=0"), ["gemm_efficiency is 0"]),
    (("explain", "gpt-1b3-h200", "--set", "model.hidden=1000000000000000000000000"), ["model.hidden", "1048576"]),
    (("flops", "gpt-1b3", "--gbs", 10**24), ["--gbs"]),
    (("flops", "gpt-1b3", "--gbs", 8, "--tp", 10**24), ["--tp"]),
    (("flops", "gpt-1b3", "--gbs", 8, "--seconds", "nan", "--devices", 8), ["--seconds is nan"]),
    (("flops", "gpt-1b3", "--gbs", 8, "--seconds", 1, "--devices", 8, "--printed", "inf"), ["--printed is inf"]),
    (("flops", "a" * 300, "--gbs", 8), ["File name too long"]),
    (("plan", "gpt-1b3", "--on", "hgx-h200", "--gbs", 10**30), ["The batch: size"]),
    (("plan", "gpt-1b3", "--on", "hgx-h200", "--gbs", 64, "--nodes", "9" * 400), ["nodes is 999"]),
    (("plan", "gpt-1b3", "--on", "hgx-h200", "--gbs", 64, "--fix", "tp=" + "9" * 5000), ["from 1 to 10,000,000"]),
    (("shape", "--params", "1..3B", "--on", "hgx-h200"), ["--params is '1..3B'"]),
    (("shape", "--params", "9" * 400, "--on", "hgx-h200"), ["--params"]),
    (("shape", "--params", "1B", "--on", "hgx-h200", "--hidden", 10**24), ["--hidden", "1,048,576"]),
    (("estimate", "gpt-1b3", "--on", "hgx-h200", "--gbs", 64, "--price", "1e308"), ["price is 1e+308"]),
    (("estimate", "gpt-1b3", "--on", "hgx-h200", "--gbs", 64, "--nodes", "9" * 5000), ["nodes has"]),
    (("train", "tiny", "--steps", -5), ["steps is -5", "greater than 0"]),
    (("train", "tiny", "--patience", "inf"), ["--patience"]),
    (("train", "tiny", "--patience", "nan"), ["--patience"]),
    (("sweep", "layouts", "--minutes", "nan"), ["--minutes"]),
    (("weights", "export", "a", "b", "--shard-gib", "nan"), ["--shard-gib"]),
]


@pytest.mark.parametrize(("arguments", "words"), FOUND, ids=[" ".join(map(str, case[0]))[:60] for case in FOUND])
def test_what_was_found_by_fuzzing_gets_a_sentence(
    trimaran: Command, arguments: tuple[object, ...], words: list[str]
) -> None:
    ran = trimaran(*arguments)
    assert ran.code == 2
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("flag", ["--rampup-batch-size 16 0 1000", "--seq-length 0", "--train-samples " + "9" * 400])
def test_a_launch_script_with_impossible_numbers_gets_a_sentence(trimaran: Command, flag: str) -> None:
    with open("x.sh", "w") as file:
        file.write(
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2"
            f" --micro-batch-size 1 --global-batch-size 64 --seq-length 128 --train-samples 640 --deepspeed {flag}\n"
        )
    assert trimaran("import", "x.sh", "--on", "hgx-h200", "--set", "cluster.nodes=1").code == 2
