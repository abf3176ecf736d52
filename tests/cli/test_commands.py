"""The commands as a user types them, on the example notes and the published measurements."""

import csv
import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from trimaran.cli.main import COMMANDS, load_command
from trimaran.ledger.tables.markdown import read_markdown

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTES = sorted((EXAMPLES / "notes").glob("*.md"))


@pytest.fixture(scope="module")
def published_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / "trimaran.sqlite"
    command = [sys.executable, "-m", "trimaran.cli.main", "import", "--published", "--ledger", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def published(published_once: Path, tmp_path: Path) -> None:
    """The default ledger holds the published measurements."""
    shutil.copyfile(published_once, tmp_path / "trimaran.sqlite")


def test_presets_are_listed_and_shown_as_files_that_load(trimaran: Command, tmp_path: Path) -> None:
    listed = trimaran("presets")
    assert listed.code == 0
    for name in ("bloom-176b", "176.25B", "jean-zay-a100-80gb", "here", "megatron-deepspeed-2022", "gpt-1b3-h200"):
        assert name in listed.out
    (tmp_path / "mine.yaml").write_text(trimaran("presets", "llama3-8b").out)
    answer = json.loads(trimaran("flops", "mine.yaml", "--gbs", 8, "--json").out)
    assert answer["parameters"] == 8_030_261_248  # the released checkpoint's count


def test_flops_of_blooms_step_and_the_formula_behind_a_printed_figure(trimaran: Command) -> None:
    answer = json.loads(trimaran("flops", EXAMPLES / "jobs" / "bloom-176b.yaml", "--seconds", 104.5, "--json").out)
    assert answer["tflops_per_device"]["bigscience-exact"] == pytest.approx(150.05, abs=0.005)
    assert answer["mfu"] == pytest.approx(113.10 / 312, abs=1e-4)
    assert answer["hfu"] == pytest.approx(150.05 / 312, abs=1e-4)
    assert len(answer["parameters_by_stage_of_one_tensor_rank"]) == 12
    words = trimaran(
        *("flops", "bloom-176b", "--gbs", 2048, "--tp", 4, "--devices", 384, "--recompute", "full"),
        *("--seconds", 104.5, "--on", "jean-zay-a100-80gb", "--printed", 144.4),
    ).out
    assert "144.4 TFLOPs is what bigscience-approx prints." in words


def test_a_valid_but_unwise_job_gets_a_warning(trimaran: Command, tmp_path: Path) -> None:
    text = (EXAMPLES / "jobs" / "bloom-176b.yaml").read_text()
    (tmp_path / "wide.yaml").write_text(text.replace("dp: 8, tp: 4", "dp: 2, tp: 16"))
    ran = trimaran("flops", "wide.yaml", "--seconds", 104.5)
    assert ran.code == 0
    assert "warning: tp 16 does not fit into nodes of 8 devices" in ran.err


def test_flops_says_which_formula_each_published_table_used(trimaran: Command) -> None:
    tables = {row["section"]: row for row in json.loads(trimaran("flops", "--table", "published", "--json").out)}
    assert tables["A100 experiments / tile and wave quantization"]["formula"] == "approx-4"
    assert tables["A100 experiments / GBS Variations"]["formula"] == "exact-4"
    assert tables["Benchmarking setup 1B3 / 32GB node / without activation checkpointing"]["formula"] == "label-3"


def test_importing_twice_adds_nothing(trimaran: Command) -> None:
    first = json.loads(trimaran("import", "--published", *NOTES, "--json").out)
    again = json.loads(trimaran("import", "--published", *NOTES, "--json").out)
    assert first["added"] == first["count"] == 1617 + 38
    assert (again["added"], again["known"], again["count"]) == (0, first["count"], first["count"])
    assert [Path(line["file"]).name for line in first["unread"]] == ["a100-topologies.md", "v100-tuneups.md"]


def test_the_ledger_is_where_the_option_or_the_environment_says(
    trimaran: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimaran("import", NOTES[0], "--ledger", "a.sqlite")
    monkeypatch.setenv("TRIMARAN_LEDGER", "b.sqlite")
    trimaran("import", NOTES[0])
    monkeypatch.delenv("TRIMARAN_LEDGER")
    trimaran("import", NOTES[0])
    assert {path.name for path in tmp_path.glob("*.sqlite")} == {"a.sqlite", "b.sqlite", "trimaran.sqlite"}


def test_audit_of_files_and_of_the_ledger_agree(trimaran: Command) -> None:
    by_file = json.loads(trimaran("audit", *NOTES, "--json").out)
    imported = json.loads(trimaran("import", *NOTES, "--json").out)
    by_ledger = json.loads(trimaran("audit", "--ledger", "--json").out)
    assert by_ledger == by_file
    assert (len(by_file["findings"]), imported["corrected"]) == (26, 13)


def test_fix_keeps_the_printed_values_beside_the_corrected_ones(trimaran: Command) -> None:
    ran = trimaran("audit", EXAMPLES / "notes" / "a100-topologies.md", "--fix")
    assert "5 corrected trials" in ran.out
    trials = json.loads(trimaran("results", "--json").out)
    assert len(trials) == 22 + 5
    by_id = {trial["id"]: trial for trial in trials}
    fixed = [trial for trial in trials if trial["corrects"]]
    for trial in fixed:
        printed = by_id[trial["corrects"]]
        assert printed["corrections"] == {}
        assert (printed["setup"], printed["outcome"]) != (trial["setup"], trial["outcome"])
    trimaran("audit", EXAMPLES / "notes" / "a100-topologies.md", "--fix")
    assert len(json.loads(trimaran("results", "--json").out)) == 27


@pytest.mark.usefixtures("published")
def test_results_rank_by_seconds_and_by_sample_where_batches_differ(trimaran: Command) -> None:
    """92.75 s at a batch of 1568 is slower than 110.48 s at 2048: 59.2 against 53.9 ms a sample."""
    mixed = trimaran("results", "size=181B", "status=ok").out
    assert "by seconds per sample" in mixed
    assert mixed.index("110.48") < mixed.index("92.75")
    equal = trimaran("results", "size=181B", "status=ok", "gbs=2048").out
    assert "by seconds per iteration" in equal
    best = next(line for line in equal.splitlines() if "★" in line)
    assert "110.48" in best


def test_an_impossible_row_is_never_the_best(trimaran: Command) -> None:
    """As printed, the swapped row would win its table with 120.29 s."""
    trimaran("audit", EXAMPLES / "notes" / "a100-topologies.md", "--fix")
    shown = trimaran("results", "size=181B", "pp=12", "tp=8").out
    marked = [line for line in shown.splitlines() if line.strip().startswith("★") and "181B" in line]
    assert ["129.26" in line for line in marked] == [True]
    assert "as printed; corrected in another row" in shown
    (group,) = json.loads(trimaran("results", "size=181B", "pp=12", "mbs=2", "zero=1", "--by", "tp", "--json").out)
    assert (group["count"], group["seconds"]) == (2, 134.02)


@pytest.mark.usefixtures("published")
def test_the_markdown_table_is_the_notes_table_and_reads_back(trimaran: Command) -> None:
    text = trimaran("results", "size=181B", "seconds>0", "--markdown", "--limit", 100).out
    header = "Nodes | Size | DP | TP | PP | MBS | GBS | Mem | Sec/it | TFLOPs | Notes"
    assert [cell.strip() for cell in text.splitlines()[0].strip("| ").split("|")] == header.split(" | ")
    read = read_markdown(text.replace("**", ""), "out.md").trials
    whole = json.loads(trimaran("results", "size=181B", "seconds>0", "--json").out)
    assert [trial.outcome.seconds for trial in read] == [trial["outcome"]["seconds"] for trial in whole]
    assert [trial.setup.mbs for trial in read] == [trial["setup"]["mbs"] for trial in whole]


@pytest.mark.usefixtures("published")
def test_the_csv_is_imported_back_without_loss(trimaran: Command, tmp_path: Path) -> None:
    trimaran("results", "--csv", "-o", "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(rows) == 1617
    trimaran("import", "out.csv", "--ledger", "other.sqlite")

    def known(name: str) -> dict[str, object]:
        found = json.loads(trimaran("results", "--json", "--ledger", name).out)
        return {t["source"]["label"]: (t["setup"], t["outcome"]) for t in found if not t["corrects"]}

    assert known("other.sqlite") == known("trimaran.sqlite")


@pytest.mark.usefixtures("published")
def test_groups_and_comparisons(trimaran: Command) -> None:
    groups = json.loads(trimaran("results", "size=181B", "gbs=2048", "--by", "tp", "--json").out)
    assert [(g["tp"], g["seconds"]) for g in groups if g["seconds"]] == [(4, 110.48), (2, 112.5), (8, 114.11)]
    mixed = json.loads(trimaran("results", "size=181B", "status=ok", "--by", "tp", "--json").out)
    assert [(g["tp"], g["seconds"]) for g in mixed] == [(4, 110.48), (2, 112.5), (8, 114.11)]  # not 92.75 at 1568
    ids = [trial["id"] for trial in json.loads(trimaran("results", "size=181B", "gbs=2048", "--json").out)][:2]
    shown = trimaran("results", "--compare", ids[0], "--compare", ids[1][:8]).out
    assert "110.48" in shown
    assert f"{111.71 / 110.48:.3f} x" in shown


def test_only_training_and_probing_may_import_torch() -> None:
    """Every module of the other rooms, imported in a fresh interpreter."""
    code = (
        "import sys, pkgutil, importlib, trimaran\n"
        "rooms = [room for room in pkgutil.iter_modules(trimaran.__path__) if room.name not in ('engine', 'probe')]\n"
        "for room in rooms:\n"
        "    package = importlib.import_module(f'trimaran.{room.name}')\n"
        "    for module in pkgutil.walk_packages(getattr(package, '__path__', []), package.__name__ + '.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
        "assert 'trimaran.ledger.audit.rates' in sys.modules\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_package(trimaran: Command) -> None:
    assert trimaran("--version").out == f"trimaran {version('trimaran')}\n"


def test_help_imports_neither_numpy_nor_pydantic() -> None:
    """That is what keeps it instant (benchmarks/startup.py times it)."""
    code = (
        "import sys\nsys.argv = ['trimaran', '--help']\nfrom trimaran.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


PROGRAM = {name: load_command(name) for name in COMMANDS}
SUBCOMMANDS = [f"{name} {sub}" for name, command in PROGRAM.items() for sub in getattr(command, "commands", {})]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_the_first_sentence_of_each_help(name: str) -> None:
    assert " ".join(PROGRAM[name].help.split("\n\n")[0].split()) == COMMANDS[name]


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"data", "weights"}) + SUBCOMMANDS)
def test_every_command_has_an_example_in_its_help(trimaran: Command, command: str) -> None:
    assert f"Example: trimaran {command}" in " ".join(trimaran(*command.split(), "--help").out.split())
