"""Damaged and hostile files for every reader of measurements, launch files and datasets, drawn from a seed.

`fuzz(seed, seconds)` returns the failures. A command may succeed or refuse its input with a Mistake; any other
exception, a command that does not end, and a refused ledger that was changed are failures. Run for longer by hand:
`python -m tests.ledger.fuzz SEED SECONDS`.
"""

import contextlib
import io
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import typer

from tests.data.files import write_set
from tests.ledger.hostile import damaged_bytes, damaged_text, hostile_cell
from trimaran.cli.main import app
from trimaran.data.inputs import BATCH_DOCUMENTS
from trimaran.ledger.published import published
from trimaran.ledger.recognise import read_file
from trimaran.ledger.schema import COLUMNS
from trimaran.ledger.store import Ledger
from trimaran.spec import Mistake

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "logs"
NOTES = ROOT / "examples" / "notes"
EXPORTS = ROOT / "tests" / "export" / "fixtures"
HANG_SECONDS = 120

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
GPUS=8
torchrun --nnodes 4 --nproc_per_node $GPUS pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
  --micro-batch-size 4 --global-batch-size 512 --rampup-batch-size 32 32 100000 --train-samples 1000000 --lr 1e-4 \\
  --bf16 --eval-interval 100 --eval-iters 10 --vocab-size 50257 --make-vocab-size-divisible-by 128 --lr-warmup-iters 5
"""
CSV = """\
framework,device,nodes,devices,layers,hidden,heads,seq_len,vocab,dp,tp,pp,vpp,zero_stage,mbs,gbs,sec_per_it,tflops,mem_gb,status,env
megatron-deepspeed,a100-80gb,48,384,70,14336,112,2048,250880,8,4,12,1,1,2,2048,105.2,150,62,ok,freq=1.4 A=b
megatron-deepspeed,a100-80gb,48,384,70,14336,112,2048,250880,4,8,12,1,1,2,2048,120.1,131,55,ok,
megatron-lm,a100-80gb,64,512,48,8192,64,2048,51200,8,8,8,3,,1,1536,20.5,140,,ok,
megatron-deepspeed,v100-32gb,16,64,32,4096,32,2048,50257,4,4,4,,,1,512,,,33,oom,
"""
NOTE = """# 104B on nodes of 8 gpus a100-80gb
NHIDDEN=8192 NLAYERS=64 NHEADS=64 SEQ_LEN=2048 VOCAB_SIZE=250880 GBS=2048

`perl -le '$ng=64*8; $ms=104; $gbs=2048; $sp=127.24; print $ms*4*2*1024*$gbs / ( $sp * $ng * 1e3)'`

| Nodes | Size | DP | TP | PP | MBS | Mem | Sec/it | TFLOPs | Notes |
| ----: | ---: | -: | -: | -: | --: | --: | -----: | -----: | ----: |
|    64 | 104B |  8 |  4 | 16 |   1 | 60GB | 127.24 |   26.2 | 02-21 |
|    64 | 104B |  4 |  8 | 16 |   1 | 50GB | 120.00 |   27.2 | 02-21 |
"""

Case = tuple[str, Callable[[Path, random.Random], list[list[str]]]]


def fuzz(seed: int, seconds: float) -> list[str]:
    """Draws cases for so many seconds, at least one of each kind; what failed, each with how to draw it again."""
    end, failures, number = time.monotonic() + seconds, list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        _make_ledgers(seeds)
        while time.monotonic() < end or number < len(KINDS):
            kind, case = KINDS[number % len(KINDS)]
            place = Path(folder) / "case"
            shutil.copytree(seeds, place)
            failures += [f"seed {seed} case {number} ({kind}): {failed}" for failed in _run(case, place, seed, number)]
            shutil.rmtree(place)
            number += 1
    return failures


def _run(case: Callable[[Path, random.Random], list[list[str]]], place: Path, seed: int, number: int) -> Iterator[str]:
    with contextlib.chdir(place):
        commands = case(place, random.Random(f"{seed} {number}"))
        for command in commands:
            before = _ledger_bytes(place)
            failed, refused = _call(command)
            if failed:
                yield f"`trimaran {' '.join(command)}` {failed}"
            elif refused and _ledger_bytes(place) != before:
                yield f"`trimaran {' '.join(command)}` refused ({refused}) and changed the ledger"


def _call(command: list[str]) -> tuple[str, str]:
    """What went wrong, and the sentence of a refusal."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("".join(traceback.format_stack(frame)[-6:]))

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            app(args=command, standalone_mode=False)
    except Mistake as mistake:
        return ("", str(mistake)) if str(mistake).endswith((".", "?")) else (f"says {str(mistake)!r}, no sentence", "")
    except typer.Exit as ended:
        return f"ended with {ended.exit_code}" if ended.exit_code else "", ""
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in at if "/trimaran/" in frame.filename][-1]
        where = f"{Path(ours.filename).name}:{ours.lineno} in {ours.name}"
        return f"raised {type(error).__name__}: {str(error)[:300]!r} at {where}", ""
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "", ""


# --- ledgers


def _make_ledgers(seeds: Path) -> None:
    """One that is closed, and one as a killed writer leaves it, with trials in its -wal file."""
    notes = read_file(NOTES / "a100-topologies.md")
    with Ledger.open(seeds / "closed.sqlite") as ledger:
        ledger.add(published().trials[:150])
        ledger.add_reading("notes.md", notes)
        ledger.correct()
    shutil.copy(seeds / "closed.sqlite", seeds / "writing.sqlite")
    with Ledger.open(seeds / "writing.sqlite") as ledger:
        for part in range(150, 190, 10):
            ledger.add(published().trials[part : part + 10])
        for end in ("", "-wal", "-shm"):
            shutil.copy(seeds / f"writing.sqlite{end}", seeds / f"killed.sqlite{end}")
    (seeds / "writing.sqlite").unlink()


def _ledger_bytes(place: Path) -> list[bytes]:
    """Without a -wal file that has at most its header: there is nothing in it to lose."""
    contents = [(place / name).read_bytes() for name in _LEDGERS if (place / name).exists()]
    return [content for content in contents if len(content) > 32]


_LEDGERS = ("closed.sqlite", "killed.sqlite", "killed.sqlite-wal")


def _ledger_commands(rng: random.Random, name: str) -> list[list[str]]:
    reading = [
        ["results"],
        ["results", "tp>=2", "--sort", "memory_gib", "--json"],
        ["results", "--csv"],
        ["results", "--markdown"],
        ["results", "--by", "size_label,tp,pp"],
        ["results", "--compare", "a", "--compare", "b"],
        ["audit"],
        ["audit", "--json"],
        ["learn", "--on", "jean-zay-a100-80gb", "--framework", "none"],
        ["report", "-o", "page.html"],
    ]
    weights = [4] * 9 + [0.3]  # the page takes seconds
    chosen = [*rng.choices(reading, weights, k=2), ["import", str(NOTES / "fugaku-30b.md")]]
    return [[*command, "--ledger", name] for command in chosen]


def _damaged_ledger(place: Path, rng: random.Random) -> list[list[str]]:
    file = rng.choice(_LEDGERS)
    path = place / file
    path.write_bytes(damaged_bytes(path.read_bytes(), rng))
    if rng.random() < 0.5:
        (place / "killed.sqlite-shm").unlink()
    return _ledger_commands(rng, file.removesuffix("-wal"))


def _hostile_cells(place: Path, rng: random.Random) -> list[list[str]]:
    """A valid SQLite file with values that no Trimaran wrote."""
    raw = sqlite3.connect(place / "closed.sqlite")
    tables = {
        "trials": COLUMNS,
        "documents": ("document",),
        "remarks": ("remark",),
        "imports": ("unread", "file", "added"),
    }
    for _ in range(rng.randint(1, 4)):
        table = rng.choice(list(tables))
        column = rng.choice(tables[table])
        row = f"rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {rng.randrange(150)})"
        found = raw.execute(f"SELECT {column} FROM {table} WHERE {row}").fetchone()
        with contextlib.suppress(sqlite3.IntegrityError):
            value = hostile_cell(found[0] if found else None, rng)
            if isinstance(value, bytes) and rng.random() < 0.5:
                raw.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {row}", (value,))
            else:
                raw.execute(f"UPDATE {table} SET {column} = ? WHERE {row}", (value,))
    raw.commit()
    raw.close()
    return _ledger_commands(rng, "closed.sqlite")


# --- measurements and launch files


def _measurements(name: str, text: str) -> Callable[[Path, random.Random], list[list[str]]]:
    def case(place: Path, rng: random.Random) -> list[list[str]]:
        path = place / name
        path.write_bytes(damaged_text(text, rng))
        commands = [["import", name, "--ledger", "new.sqlite"]]
        commands += [["results", "--ledger", "new.sqlite"], ["audit", name]]
        if name.endswith(".csv"):
            commands += [["predict", name, "-o", "predicted.csv", *rng.choice([[], ["--cluster", "selene"]])]]
        return [*commands, ["score", name, *rng.choice([[], ["--cluster", "selene"]])]]

    return case


def _launch_file(name: str, text: str) -> Callable[[Path, random.Random], list[list[str]]]:
    def case(place: Path, rng: random.Random) -> list[list[str]]:
        (place / name).write_bytes(damaged_text(text, rng))
        on = rng.choice(["selene", "jean-zay-a100-80gb", "here"])
        model = rng.choice([[], ["--model", "gpt-1b3"]])
        return [["import", name, "--on", on, "-o", "job.yaml", *model]]

    return case


# --- datasets


def _dataset(place: Path, rng: random.Random) -> list[list[str]]:
    write_set(place / "set", [[[1, 2, 3]], [[4, 5]], [[6] * 40, [7]]])
    path = place / rng.choice(["set.idx", "set.idx", "set.bin"])
    path.write_bytes(damaged_bytes(path.read_bytes(), rng))
    return [["data", "show", "set"], ["data", "show", "set", "--json"]]


def _texts(place: Path, rng: random.Random) -> list[list[str]]:
    lines = '{"text": "one two"}\n{"text": "three", "n": 3}\n{"text": ""}\n' * 5
    (place / "texts.jsonl").write_bytes(damaged_text(lines, rng))
    prepare = ["data", "prepare", "texts.jsonl", "-o", "tokens", "--bytes", *rng.choice([[], ["--skip-bad"]])]
    return [prepare, *([["data", "show", "tokens"]] if rng.random() < 0.5 else [])]


def _prepared(place: Path, rng: random.Random) -> list[list[str]]:
    """The notes that a dataset keeps of itself: its manifest, and the state of an interrupted preparation."""
    (place / "texts.jsonl").write_text('{"text": "one"}\n' * (BATCH_DOCUMENTS + 1) + "{")
    prepare = ["data", "prepare", "texts.jsonl", "-o", "tokens", "--bytes"]
    _call(prepare)  # stops at the bad record
    path = place / "tokens.state.partial"
    if rng.random() < 0.5:
        _call([*prepare, "--skip-bad"])
        path = place / "tokens.json"
    path.write_bytes(damaged_text(path.read_text(), rng))
    return [["data", "show", "tokens"] if path.suffix == ".json" else prepare, [*prepare, "--skip-bad"]]


def _fixture(path: Path) -> str:
    return path.read_text("utf-8")


KINDS: tuple[Case, ...] = (
    ("damaged ledger", _damaged_ledger),
    ("csv", _measurements("rows.csv", CSV)),
    ("note", _measurements("notes.md", NOTE)),
    ("script", _launch_file("train.sh", SCRIPT)),
    ("ledger with hostile cells", _hostile_cells),
    ("published csv", _measurements("rows.csv", CSV.splitlines()[0] + "\n" + CSV.splitlines()[3] + "\n")),
    ("note, a100", _measurements("notes.md", _fixture(NOTES / "a100-topologies.md"))),
    ("megatron-deepspeed log", _measurements("run.log", _fixture(FIXTURES / "megatron_deepspeed_176b.log"))),
    ("damaged ledger", _damaged_ledger),
    ("bigscience script", _launch_file("train.slurm", _fixture(EXPORTS / "bigscience" / "tr11-176B-ml.slurm"))),
    ("dataset", _dataset),
    ("megatron-lm log", _measurements("run.log", _fixture(FIXTURES / "megatron_lm_345m_pp4.log"))),
    ("torchtitan log", _measurements("run.log", _fixture(FIXTURES / "torchtitan_3d.log"))),
    ("texts", _texts),
    ("prepared data", _prepared),
    ("torchtitan toml", _launch_file("config.toml", _fixture(EXPORTS / "torchtitan" / "llama3_8b.toml"))),
    (
        "deepspeed json",
        _launch_file(
            "ds.json",
            '{"train_batch_size": 64, "zero_optimization": {"stage": 1}, '
            '"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, '
            '"gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}}',
        ),
    ),
)

if __name__ == "__main__":
    found = fuzz(int(sys.argv[1]), float(sys.argv[2]))
    print("\n".join(found))
    sys.exit(1 if found else 0)
