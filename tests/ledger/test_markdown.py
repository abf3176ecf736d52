"""Notes with tables, in all their dialects, become trials; the example notes and, where present, the original ones."""

import csv
from pathlib import Path

import pytest

from trimaran.ledger.reading import Reading
from trimaran.ledger.recognise import read_file
from trimaran.ledger.tables.markdown import read_markdown
from trimaran.spec import Mistake, Trial

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "notes"
SHARED = ROOT.parent / "shared"


def row(reading: Reading, line: int) -> Trial:
    (trial,) = [trial for trial in reading.trials if trial.source.line == line]
    return trial


def line_of(name: str, text: str) -> int:
    lines = (EXAMPLES / name).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number


@pytest.fixture(scope="module")
def a100() -> Reading:
    return read_file(EXAMPLES / "a100-topologies.md")


@pytest.fixture(scope="module")
def v100() -> Reading:
    return read_file(EXAMPLES / "v100-tuneups.md")


@pytest.fixture(scope="module")
def fugaku() -> Reading:
    return read_file(EXAMPLES / "fugaku-30b.md")


def test_a_row_takes_its_shape_from_the_lines_above_its_table(a100: Reading) -> None:
    trial = row(a100, line_of("a100-topologies.md", "| 111.89 |"))
    setup, outcome = trial.setup, trial.outcome
    assert (setup.layers, setup.hidden, setup.heads) == (72, 14336, 64)
    assert (setup.dp, setup.tp, setup.pp, setup.mbs, setup.gbs) == (8, 4, 12, 4, 2048)
    assert (setup.device, setup.nodes, setup.devices) == ("a100-80gb", 48, 384)
    assert (setup.seq_len, setup.vocab) == (2048, 250_000)
    assert (outcome.status, outcome.seconds, outcome.tflops, outcome.memory_gib) == ("ok", 111.89, 144.08, 60)
    assert (trial.source.date, trial.source.section) == ("02-25", "A100 campaign / Less tensor parallelism")


def test_unknown_stays_unknown(a100: Reading) -> None:
    setup = row(a100, line_of("a100-topologies.md", "| 111.89 |")).setup
    assert (setup.zero, setup.recompute, setup.precision, setup.optimizer, setup.ffn_hidden) == (None,) * 5


def test_a_size_chooses_between_two_shapes_of_one_section(a100: Reading) -> None:
    small = row(a100, line_of("a100-topologies.md", "| 20B  |  1 |"))
    large = row(a100, line_of("a100-topologies.md", "| 200B |  2 |"))
    assert (small.setup.layers, large.setup.layers) == (8, 80)
    assert (small.setup.precision, large.setup.precision) == ("fp16", "fp16")


def test_a_quoted_log_line_lends_its_seconds_to_the_row_with_its_tflops(a100: Reading) -> None:
    small = row(a100, line_of("a100-topologies.md", "| 20B  |  1 |"))
    assert (small.outcome.seconds, small.outcome.tflops, small.setup.gbs) == (769.99, 108.47, 2048)
    assert sum(trial.outcome.tflops == 108.47 for trial in a100.trials) == 1


def test_words_in_cells_are_outcomes(a100: Reading, v100: Reading, fugaku: Reading) -> None:
    def status(reading: Reading, name: str, text: str) -> str:
        return row(reading, line_of(name, text)).outcome.status

    assert status(a100, "a100-topologies.md", "| OOM ") == "oom"
    assert status(a100, "a100-topologies.md", "| fail") == "fail"
    assert status(a100, "a100-topologies.md", "always hangs") == "hang"
    assert status(a100, "a100-topologies.md", "may hang") == "ok"
    assert status(v100, "v100-tuneups.md", "32GB OOMs") == "oom"
    assert status(v100, "v100-tuneups.md", "borderline OOM") == "ok"
    assert status(fugaku, "fugaku-30b.md", "(OOM later)") == "oom"


def test_launch_blocking_is_kept_as_an_environment(a100: Reading) -> None:
    trial = row(a100, line_of("a100-topologies.md", "|   80 | yes"))
    assert trial.setup.environment == {"CUDA_LAUNCH_BLOCKING": "0"}
    assert (trial.setup.layers, trial.setup.tp, trial.setup.pp, trial.setup.dp) == (80, 8, 10, 1)


def test_one_liners_and_flags_tell_what_the_table_does_not(v100: Reading) -> None:
    trial = row(v100, line_of("v100-tuneups.md", "|   681 |"))
    assert (trial.setup.gbs, trial.setup.seq_len, trial.setup.size_label) == (2048, 2048, "104B")
    assert (trial.setup.recompute, trial.setup.optimizer) == ("full", "adam-8bit")
    assert (trial.setup.device, trial.setup.devices, trial.outcome.memory_gib) == ("v100-32gb", 128, 31)
    other = row(v100, line_of("v100-tuneups.md", "16GB borderline"))
    assert (other.setup.size_label, other.setup.gbs, other.setup.layers) == ("1.3B", 512, None)


def test_fugakus_mp_is_tensor_parallel_and_its_mebibytes_are_converted(fugaku: Reading) -> None:
    trial = row(fugaku, line_of("fugaku-30b.md", "16622.7 MiB"))
    assert (trial.setup.tp, trial.setup.devices_per_node, trial.setup.devices) == (4, 1, 192)
    assert trial.outcome.memory_gib == pytest.approx(16622.7 / 1024)
    assert (trial.setup.recompute, trial.setup.freq_ghz, trial.setup.device) == ("full", 2.0, "a64fx")
    second = row(fugaku, line_of("fugaku-30b.md", "| 576 |"))
    assert (second.setup.hidden, second.setup.heads, second.setup.layers) == (7176, 78, 48)
    assert second.setup.size_label == "30B"


def test_what_is_not_understood_is_listed_with_its_line(a100: Reading, v100: Reading) -> None:
    assert [(u.line, u.text) for u in a100.unread] == [
        (line_of("a100-topologies.md", "121 secs/it"), "* DP=8, PP=6, MBS=4: 121 secs/it")
    ]
    assert [u.line for u in v100.unread] == [line_of("v100-tuneups.md", "|   BS |")]


TABLE = """# A campaign
NLAYERS=4 NHIDDEN=256

| Nodes | DP | TP | PP | MBS | GBS | Sec/it |
| ----: | -: | -: | -: | --: | --: | -----: |
"""


def test_two_header_lines_make_one_header() -> None:
    text = "| Model | Atten | TFlops |\n| size  | heads | /GPU |\n| ---: | ---: | ---: |\n| 1.7B | 24 | 137 |\n"
    reading = read_markdown(text, "n.md")
    assert [(t.setup.size_label, t.setup.heads, t.outcome.tflops) for t in reading.trials] == [("1.7B", 24, 137)]


def test_a_row_with_a_missing_cell_is_listed_not_guessed() -> None:
    reading = read_markdown(TABLE + "| 1 | 8 | 1 | 1 | 1 | 8 | 2.5 |\n| 1 | 8 | 1 | 1 | 8 | 2.5 |\n", "n.md")
    assert len(reading.trials) == 1
    assert [(u.line, "6 cells under 7" in u.why) for u in reading.unread] == [(7, True)]


@pytest.mark.parametrize("cell", ["-2.5", "nan", "inf"])
def test_a_number_that_cannot_be_measured_is_a_mistake_with_its_place(cell: str) -> None:
    with pytest.raises(Mistake, match=r"n\.md:6.*seconds.*" + cell.strip("-")):
        read_markdown(TABLE + f"| 1 | 8 | 1 | 1 | 1 | 8 | {cell} |\n", "n.md")


def test_an_identical_row_printed_twice_is_two_trials_and_text_above_changes_no_id() -> None:
    rows = "| 1 | 8 | 1 | 1 | 1 | 8 | 2.5 |\n"
    first = read_markdown(TABLE + rows + rows, "n.md")
    moved = read_markdown("An introduction.\n\n" + TABLE + rows + rows, "n.md")
    assert len({trial.id for trial in first.trials}) == 2
    assert [trial.id for trial in first.trials] == [trial.id for trial in moved.trials]


@pytest.mark.skipif(not (SHARED / "notes").is_dir(), reason="the original notes are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a100-prequel.md", "s000"),
        ("v100-104b-tuneup.md", "s001"),
        ("v100-1b3-benchmark.md", "s002"),
        ("fugaku-30b-benchmark.md", "s003"),
        ("planning-notes.md", "s004"),
    ],
)
def test_every_row_of_the_original_notes_is_read(name: str, document: str) -> None:
    """Line by line as somebody else copied the same notes into published.csv, memory to its rounding there."""
    path = SHARED / "notes" / name
    reading = read_file(path)
    with (SHARED / "measurements" / "published.csv").open() as file:
        copied = {int(row["line"]): row for row in csv.DictReader(file) if row["id"].startswith(document)}
    unread = {line.line for line in reading.unread}  # four memory figures in sentences
    assert {trial.source.line for trial in reading.trials} == copied.keys() - unread
    for trial in reading.trials:
        expected = copied[trial.source.line or 0]
        assert (trial.outcome.seconds or 0) == float(expected["sec_per_it"] or 0)
        assert (trial.outcome.tflops or 0) == float(expected["tflops"] or 0)
        assert (trial.outcome.memory_gib or 0) == pytest.approx(float(expected["mem_gb"] or 0), abs=5e-5)
    numbers = {
        i
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if line.startswith("|") and any(c.isdigit() for c in line)
    }
    skipped = numbers - {trial.source.line for trial in reading.trials}
    schedules = {i for i in skipped if path.read_text().splitlines()[i - 1].count("|") == 4}  # NNODES | BS | MBS
    assert skipped == schedules
