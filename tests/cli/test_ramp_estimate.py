"""`trimaran ramp` and `trimaran estimate` as a user calls them."""

import json
from itertools import pairwise

import pytest

from tests.cli.conftest import Command

NOTES = ("gpt-1b3", "--on", "jean-zay-v100-32gb", "--gbs", 512, "--trainer", "megatron-deepspeed-2022")
RAMP = (*NOTES, "--nodes", 16, "--ramp", "32,32,200000", "--tokens", "2B")
BLOOM = ("bloom-176b", "--on", "jean-zay-a100-80gb", "--gbs", 2048)


def test_ramp_shows_when_to_switch_and_what_others_lose(trimaran: Command) -> None:
    ran = trimaran("ramp", *RAMP, "--compare", "8:32:1,16:64:1")
    assert ran.code == 0, ran.err
    for word in (
        "from sample",
        "from hour",
        "nodes",
        "mbs",
        "What others lose",
        "one layout on all 16 nodes",
        "8:32:1",
    ):
        assert word in ran.out


def test_a_ramp_schedule_covers_the_run_and_beats_the_others(trimaran: Command) -> None:
    found = json.loads(trimaran("ramp", *RAMP, "--compare", "8:32:1,16:64:1", "--json").out)
    stretches = found["schedule"]
    assert stretches[0]["from_sample"] == 0
    assert stretches[-1]["to_sample"] * 2048 >= 2e9
    assert all(a["to_sample"] == b["from_sample"] for a, b in pairwise(stretches))
    switches = (len(stretches) - 1) * found["switch_minutes"] / 60
    assert sum(s["hours"] for s in stretches) + switches == pytest.approx(found["hours"])
    for s in stretches:
        layout = s["layout"]
        assert layout["dp"] * layout["tp"] * layout["pp"] == 4 * s["nodes"] <= 64
        assert s["from_batch"] % (layout["dp"] * layout["micro_batch"]) == 0
    assert all(row["loss_percent"] >= -1e-9 for row in found["compared"] if row["hours"] is not None)


def test_a_dear_switch_is_made_less_often(trimaran: Command) -> None:
    def switches(minutes: float) -> int:
        found = json.loads(trimaran("ramp", *RAMP, "--switch-minutes", minutes, "--json").out)
        return len(found["schedule"]) - 1

    assert switches(0) >= switches(10) >= switches(10_000) == 0


def test_one_micro_batch_per_replica_on_two_stages_is_half_a_bubble(trimaran: Command) -> None:
    """The notes' first stage: 16 nodes of 4, pp 2, so 32 replicas of one micro batch at batch 32."""
    found = json.loads(trimaran("ramp", *RAMP, "--compare", "16:32:1:1:2", "--json").out)
    hand = found["compared"][-1]
    assert hand["schedule"][0]["layout"]["dp"] == 32
    assert hand["schedule"][0]["bubble_first"] == pytest.approx(0.5, abs=0.06)  # exactly half with equal stages
    assert "1 micro batch per replica on pp 2" in hand["losses"][0]["why"]


def test_the_notes_schedule_stumbles_over_batches_between_its_own(trimaran: Command) -> None:
    """32 replicas of micro batch 2 want multiples of 64; a ramp in steps of 32 comes through 96."""
    found = json.loads(trimaran("ramp", *RAMP, "--compare", "16:32:1:1:2,16:64:2:1:2", "--json").out)
    (line,) = found["compared"][-1]["passed_over"]
    assert "16:64:2:1:2" in line
    assert "96" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ramp", "32,32"), "START,INCREMENT,SAMPLES"),
        (("--ramp", ""), "START,INCREMENT,SAMPLES"),
        (("--ramp", "32,33,1000"), "never reaches"),
        (("--ramp", "1024,32,1000"), "above the global batch"),
        (("--nodes", "0"), "at least 1 node"),
        (("--tokens", "300Bx"), "300Bx"),
        (("--switch-minutes", "-1"), "switch_minutes is -1"),
        (("--compare", "16:32"), "nodes:batch:micro batch"),
        (("--compare", "999:32:1"), "at most 16"),
        (("--fix", "dp=64"), "dp=64"),
        (("--precision", "bf16"), "bf16"),
    ],
)
def test_a_wrong_ramp_is_a_sentence(trimaran: Command, options: tuple[str, ...], said: str) -> None:
    ran = trimaran("ramp", *RAMP, *options)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_estimate_shows_the_curve(trimaran: Command) -> None:
    ran = trimaran("estimate", *BLOOM, "--tokens", "366B", "--nodes", "16,32,48", "--price", 2, "--mtbf-hours", 9000)
    assert ran.code == 0, ran.err
    for word in ("days", "device-hours", "MWh", "cost", "goodput", "checkpoint every", "█", "Soonest"):
        assert word in ran.out


def test_an_estimate_adds_up(trimaran: Command) -> None:
    """366e9 tokens / (2048 x 2048) are 87261.2 steps."""
    options = ("--tokens", "366B", "--nodes", "16,48", "--watts", 500, "--price", 2, "--mtbf-hours", 9000)
    for one in json.loads(trimaran("estimate", *BLOOM, *options, "--json").out)["estimates"]:
        assert one["iterations"] == 87_262
        assert one["devices"] == 8 * one["nodes"]
        assert one["days"] * one["goodput"] == pytest.approx(87_262 * one["seconds_per_iteration"] / 86_400)
        assert one["device_hours"] == pytest.approx(one["days"] * 24 * one["devices"])
        assert one["energy_mwh"] == pytest.approx(one["device_hours"] * 500e-6)
        assert one["cost"] == pytest.approx(2 * one["device_hours"])
        assert one["days_low"] < one["days"] < one["days_high"]
        assert one["failures"]["mtbf_hours"] == pytest.approx(9000 / one["nodes"])


def test_without_a_given_power_the_data_sheets_is_used_and_said(trimaran: Command) -> None:
    found = json.loads(trimaran("estimate", *BLOOM, "--nodes", 48, "--json").out)
    (one,) = found["estimates"]
    assert one["energy_mwh"] == pytest.approx(one["device_hours"] * 400e-6)
    assert any("400 W" in note for note in found["notes"])
    assert one["cost"] is None
    assert one["goodput"] == 1.0


def test_a_hundred_thousand_devices(trimaran: Command) -> None:
    found = json.loads(trimaran("estimate", *BLOOM, "--nodes", "12288", "--mtbf-hours", 6300, "--json").out)
    (one,) = found["estimates"]
    assert one["devices"] == 98_304
    assert 0 < one["goodput"] < 1


def test_a_number_of_nodes_that_cannot_run_is_told_apart(trimaran: Command) -> None:
    ran = trimaran("estimate", *BLOOM, "--nodes", "1,48")
    assert ran.code == 0
    assert "1 nodes: does not fit" in ran.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tokens", "300Bx"), "300Bx"),
        (("--tokens", "0"), "above zero"),
        (("--tokens=-5B",), "above zero"),
        (("--nodes", "0"), "above zero"),
        (("--nodes=-3",), "above zero"),
        (("--nodes", "8,x"), "'x'"),
        (("--nodes", "99999"), "100,000 devices"),
        (("--nodes", "1,2"), "The nearest that works: nodes="),
        (("--nodes", "48", "--mtbf-hours", "0.01"), "never ends"),
        (("--watts", "-1"), "watts is -1"),
        (("--price", "nan"), "price is nan"),
        (("--mtbf-hours", "0"), "mtbf_hours is 0"),
        (("--restart-minutes", "-1"), "restart_minutes is -1"),
        (("--gbs", "0"), "gbs is 0"),
        (("--on", "no-such-place"), "no-such-place"),
    ],
)
def test_a_wrong_estimate_is_a_sentence(trimaran: Command, options: tuple[str, ...], said: str) -> None:
    ran = trimaran("estimate", *BLOOM, *options)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["ramp", "estimate"])
def test_the_help_has_an_example(trimaran: Command, command: str) -> None:
    assert "Example" in trimaran(command, "--help").out
