"""What the fuzzer tries: each function makes the files and the arguments of one call."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import trimaran
from tests.fuzz import hostile
from trimaran.export.formats import TARGETS
from trimaran.spec import Job, presets
from trimaran.spec.files import load_job
from trimaran.spec.settings import _fields

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(trimaran.__file__).parent / "published" / "published.csv"
Files = dict[str, str | bytes]
Case = tuple[Files, list[str]]
NAMES = ("tiny", "gpt-1b3", "bloom-176b", "fugaku", "hgx-h200", "megatron-lm", "nobody")
SHORT = {  # a Job as a person writes it
    "model": {"preset": "gpt-1b3", "layers": 24},
    "cluster": {"preset": "hgx-h200", "nodes": 2, "devices_per_node": 4},
    "layout": {"dp": 2, "tp": 2, "pp": 2, "split": [12, 12], "micro_batch": 2},
    "batch": {"size": 64, "ramp": {"start": 16, "increment": 16, "samples": 1000}},
    "recipe": {"learning_rate": 0.001, "betas": [0.9, 0.95]},
    "data": {"source": {"a": 1, "b": 2}},
}
SWEEP = {
    "name": "try",
    "base": SHORT,
    "axes": {"layout.micro_batch": [1, 2], "layout.zero": [0, 1]},
    "alternatives": [{"layout.recompute": "full"}],
    "measuring": {"iterations": 3},
    "place": {"kind": "local", "parallel": 2},
}
OPTIONS = {  # of the planner's commands, with values that work
    "plan": {"": "gpt-1b3", "--on": "hgx-h200", "--nodes": "2", "--gbs": "64", "--fix": "tp=2", "--top": "3"},
    "estimate": {
        "": "gpt-1b3",
        "--on": "hgx-h200",
        "--gbs": "64",
        "--tokens": "1B",
        "--nodes": "1,2",
        "--price": "1.5",
    },
    "fit": {"": "gpt-1b3", "--on": "hgx-h200", "--gbs": "64", "--nodes": "1", "--fix": "tp=1"},
    "ramp": {
        "": "gpt-1b3",
        "--on": "hgx-h200",
        "--gbs": "64",
        "--ramp": "32,32,1000",
        "--nodes": "1",
        "--tokens": "1B",
    },
    "shape": {"--params": "350M", "--on": "hgx-h200", "--gbs": "64", "--nodes": "1", "--hidden": "1024", "--tp": "1"},
    "flops": {
        "": "gpt-1b3",
        "--gbs": "64",
        "--seconds": "1.5",
        "--devices": "8",
        "--on": "hgx-h200",
        "--printed": "150",
    },
}
MORE = {
    "plan": ("--ramp", "--precision", "--optimizer", "--trainer", "--objective", "--compare"),
    "estimate": ("--watts", "--mtbf-hours", "--checkpoint-seconds", "--restart-minutes", "--fix"),
    "fit": ("--aspect", "--vocab", "--seq", "--trainer"),
    "ramp": ("--switch-minutes", "--compare", "--fix"),
    "shape": ("--heads", "--layers", "--vocab", "--seq", "--top", "--fix"),
    "flops": ("--tp", "--recompute", "--table"),
}


@cache
def whole_job() -> dict[str, Any]:
    return load_job(ROOT / "examples" / "jobs" / "bloom-176b.yaml").to_dict()


@cache
def texts(kind: str) -> list[str]:
    folders = {
        "notes": (ROOT / "examples" / "notes").glob("*.md"),
        "logs": (ROOT / "tests" / "fixtures" / "logs").glob("*.log"),
        "launch": (p for p in (ROOT / "tests" / "export" / "fixtures").rglob("*") if p.is_file()),
    }
    return [path.read_text() for path in sorted(folders[kind])]


def job_file(random: Random) -> Case:
    name = random.choice(("job.yaml", "job.yaml", "job.json"))
    text = hostile.document(random, random.choice((SHORT, SHORT, whole_job())))
    return {name: text}, _about_job(random, name)


def settings(random: Random) -> Case:
    given = [_setting(random) for _ in range(random.choice((1, 1, 2)))]
    job = random.choice(("gpt-1b3-h200", str(ROOT / "examples" / "jobs" / "bloom-176b.yaml")))
    return {}, [*_about_job(random, job, alone=False), *(word for each in given for word in ("--set", each))]


def part_file(random: Random) -> Case:
    kind = random.choice(("models", "clusters", "trainers"))
    name = random.choice([name for name in presets.names(kind) if name != presets.HERE])
    given: dict[str, Any] = presets.preset(kind, name).to_dict()
    text = hostile.document(random, {"preset": name, **dict(random.sample(sorted(given.items()), 3))})
    if kind == "models":
        command = random.choice(
            (["flops", "x.yaml", "--gbs", "8"], ["fit", "x.yaml", "--on", "hgx-h200", "--gbs", "64"])
        )
    elif kind == "clusters":
        command = ["plan", "gpt-1b3", "--on", "x.yaml", "--gbs", "64", "--nodes", "1", "--fix", "tp=1"]
    else:
        command = ["plan", "gpt-1b3", "--on", "hgx-h200", "--gbs", "64", "--nodes", "1", "--trainer", "x.yaml"]
    return {"x.yaml": text}, command


def sweep_file(random: Random) -> Case:
    return {"sweep.yaml": hostile.document(random, SWEEP)}, ["sweep", "sweep.yaml", "--dry-run", *_json(random)]


def options(random: Random) -> Case:
    command = random.choice(list(OPTIONS))
    given = dict(OPTIONS[command])
    for name in random.sample([*given, *MORE[command]], random.choice((1, 1, 2))):
        given[name] = hostile.option(random)
    words = [word for name, text in given.items() for word in ([name, text] if name else [text])]
    return {}, [command, *words, *_json(random)]


def csv_file(random: Random) -> Case:
    header, *rows = PUBLISHED.read_text().splitlines()
    text = hostile.mutated(random, "\n".join([header, *random.sample(rows, 6)]) + "\n")
    commands = (
        ["predict", "x.csv", "-o", "out.csv"],
        ["score", "x.csv", "--json"],
        ["import", "x.csv"],
        ["audit", "x.csv"],
        ["flops", "--table", "x.csv"],
    )
    return {"x.csv": text}, random.choice(commands)


def notes(random: Random) -> Case:
    text = hostile.mutated(random, random.choice(texts("notes")))
    return {"x.md": text}, random.choice(
        (["import", "x.md"], ["audit", "x.md"], ["score", "x.md"], ["flops", "--table", "x.md"])
    )


def logs(random: Random) -> Case:
    return {"x.log": hostile.mutated(random, random.choice(texts("logs")))}, [
        random.choice(("import", "audit")),
        "x.log",
    ]


@cache
def exported(ramped: bool) -> list[str]:
    """Scripts and configurations of ours, which state nearly every field."""
    job = Job.of(whole_job()) if ramped else load_job("gpt-1b3-h200")
    if ramped:
        job = job.replace(batch={"size": 2048, "ramp": {"start": 192, "increment": 16, "samples": 10**6}})
    every = [text for write in TARGETS.values() for text in write(job).files.values()]
    return [text for text in every if len(text) > 500]


def launch_file(random: Random) -> Case:
    text = hostile.mutated(random, random.choice([*texts("launch"), *exported(True), *exported(False)]))
    name = "x.toml" if text.startswith("[") else "x.json" if text.startswith("{") else "x.sh"
    return {name: text}, ["import", name, "--on", random.choice(("selene", "hgx-h200")), "--model", "gpt-1b3"]


def ledger(random: Random) -> Case:
    """Damaged in some bytes, or no ledger at all."""
    content = bytearray(_good_ledger())
    for _ in range(random.choice((1, 10, 1000))):
        content[random.randrange(len(content))] = random.randrange(256)
    if random.random() < 0.2:
        del content[random.randrange(len(content)) :]
    command = random.choice((["results"], ["results", "--json"], ["audit"], ["learn", "--on", "jean-zay-a100-80gb"]))
    return {"x.sqlite": bytes(content)}, [*command, "--ledger", "x.sqlite"]


@cache
def _good_ledger() -> bytes:
    from tempfile import TemporaryDirectory

    from trimaran.ledger.recognise import read_file
    from trimaran.ledger.store import Ledger

    with TemporaryDirectory() as folder:
        path = Path(folder, "x.sqlite")
        with Ledger.open(path) as store:
            store.add_reading("notes", read_file(ROOT / "examples" / "notes" / "a100-topologies.md"))
        return path.read_bytes()


KINDS: dict[str, Callable[[Random], Case]] = {
    "job": job_file,
    "settings": settings,
    "part": part_file,
    "sweep": sweep_file,
    "options": options,
    "csv": csv_file,
    "notes": notes,
    "logs": logs,
    "launch": launch_file,
    "ledger": ledger,
}


def _about_job(random: Random, job: str, alone: bool = True) -> list[str]:
    commands = [
        ["explain", job],
        ["explain", job, "--json"],
        ["export", job, "--json", "--to", random.choice(list(TARGETS))],
    ]
    if alone:
        commands += [["flops", job, "--seconds", "1.5"], ["plan", "--compare", job, "--fix", "tp=2", "--fix", "pp=2"]]
    return random.choice(commands)


def _setting(random: Random) -> str:
    field = random.choice(sorted(_fields(Job)))
    if random.random() < 0.1:
        field = hostile.option(random)
    text = random.choice(hostile.SNIPPETS).replace("\0", "") if random.random() < 0.15 else hostile.option(random)
    return f"{field}={random.choice(NAMES) if random.random() < 0.1 else text}"


def _json(random: Random) -> list[str]:
    return ["--json"] if random.random() < 0.5 else []
