"""On a full disk a command ends with a sentence that names the file, and what was there stays as it was."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.disks import fill, small_disk

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTES, JOB = EXAMPLES / "notes", EXAMPLES / "jobs" / "bloom-176b.yaml"
PAGE = 4096  # bytes: what such a disk gives out at once
ROWS = (
    "framework,device,nodes,devices,layers,hidden,gbs,dp,tp,pp,mbs,sec_per_it\n"
    + "megatron-lm,a100-80gb,1,8,24,2048,64,1,2,4,1,2.5\n" * 200
)
SCRIPT = (
    "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048"
    " --num-attention-heads 16 --seq-length 2048 --micro-batch-size 4 --global-batch-size 512 --bf16\n"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "16m") as folder:
        yield folder


def contents(folder: Path) -> dict[str, bytes]:
    """Without the empty files that SQLite keeps beside a ledger."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


COMMANDS = {
    "results": ("results", "--json", "-o", "disk/old.json"),
    "report": ("report", "size=181B", "-o", "disk/old.html"),
    "predict": ("predict", "rows.csv", "-o", "disk/old.csv"),
    "plan": ("plan", "gpt-1b3", "--on", "selene", "--nodes", "1", "--gbs", "64", "--save", "disk/folder"),
    "export": ("export", JOB, "--to", "megatron-deepspeed", "-o", "disk/folder"),
    "a launch file": ("import", "train.sh", "--on", "selene", "-o", "disk/old.yaml"),
    "import": ("import", NOTES / "fugaku-30b.md", "--ledger", "disk/old.sqlite"),
    "audit --fix": ("audit", NOTES / "fugaku-30b.md", "--fix", "--ledger", "disk/old.sqlite"),
    "data prepare": ("data", "prepare", "texts.jsonl", "--bytes", "-o", "disk/old", "--overwrite"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_a_sentence_and_the_old_files_stay(
    trimaran: Command, tmp_path: Path, disk: Path, name: str
) -> None:
    arguments = COMMANDS[name]
    trimaran("import", NOTES / "a100-topologies.md")
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n')
    assert trimaran(*(a for a in arguments if a != "--overwrite")).code == 0  # an older one of each
    if name == "data prepare":
        (tmp_path / "texts.jsonl").write_text('{"text": "two"}\n' * 20_000)
    elif "--ledger" in arguments:  # the same rows again would write nothing
        assert trimaran("import", NOTES / "v100-tuneups.md", "--ledger", "disk/old.sqlite").code == 0
        rows = (NOTES / "fugaku-30b.md").read_text().replace("30B", "31B")
        (tmp_path / "notes.md").write_text(rows)
        arguments = tuple("notes.md" if isinstance(a, Path) else a for a in arguments)
    fill(disk, leave=PAGE if name in ("results", "report", "predict", "data prepare") else 0)  # these need more
    before = contents(disk)
    ran = trimaran(*arguments)
    assert (ran.code, ran.out) == (2, "")
    sentence = ran.err.strip().splitlines()[-1]
    assert sentence.startswith("trimaran: ")
    assert "disk/" in sentence
    assert "No space left on device" in sentence or "full" in sentence
    assert "Traceback" not in ran.err
    assert contents(disk) == before


@pytest.mark.parametrize("arguments", [("presets",), ("presets", "bloom-176b"), ("plan", "--help")])
def test_output_into_a_file_on_a_full_disk(disk: Path, arguments: tuple[str, ...]) -> None:
    fill(disk)
    with (disk / "out").open("wb") as out:
        command = [sys.executable, "-m", "trimaran.cli.main", *arguments]
        ran = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "trimaran: The output cannot be written: No space left on device.\n")


def test_data_that_did_not_fit_is_resumed_when_there_is_room(trimaran: Command, tmp_path: Path, disk: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "document {i} of many"}}\n' for i in range(12_000)))
    fill(disk, leave=60 * PAGE)
    ran = trimaran("data", "prepare", "texts.jsonl", "--bytes", "-o", "disk/tokens", "--every", "0")
    assert ran.code == 2
    assert "cannot be written: No space left on device. What was written is kept; the same command resumes." in ran.err
    assert all(path.name.endswith(".partial") for path in disk.iterdir() if path.name != "filler")
    (disk / "filler").unlink()
    assert trimaran("data", "prepare", "texts.jsonl", "--bytes", "-o", "disk/tokens", "--every", "0").code == 0
    assert trimaran("data", "prepare", "texts.jsonl", "--bytes", "-o", "whole").code == 0
    for end in (".bin", ".idx"):
        assert Path(f"disk/tokens{end}").read_bytes() == Path(f"whole{end}").read_bytes()
