"""injections: hostile text in the strings of a job × the targets of `trimaran export`.

Survived: the export is refused with a sentence, or every script of it passes `bash -n`, and when it is run with stubs
for everything that it calls, no text of the job has run as a command (the file it would have made is not there).
"""

import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fault_campaign.campaign import Attempt, Campaign
from trimaran.export.formats import TARGETS
from trimaran.export.launch_script import plain_name
from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job

# {} is a command that makes a file.
HOSTILE = (
    "x\n{}\n",
    "x\r\n{}\r\n",
    "$({})",
    "`{}`",
    "'; {}; '",
    '"; {}; "',
    "x; {} #",
    "x && {}",
    "x | {}",
    "\\\n{}\n",
    "EOF\n{}\n",
    "x\n#SBATCH --wrap={}\n{}",
    "'\"$({})\"'",
    "${{x:=$({})}}",
    "x\x00\n{}",
    "x\u2028{}\u2029{}",
)
STUBS = ("python", "python3", "torchrun", "deepspeed", "srun", "sbatch", "scontrol", "trimaran", "mpirun", "nvidia-smi")
FIELDS = ("name", "model.name", "cluster.name", "environment", "environment's name", "data.source", "saving.folder")


def hostile_job(field: str, text: str) -> Job:
    job = load_job("tiny")
    values: dict[str, Any] = job.model_dump()
    if field == "environment":
        values["environment"] = {"A": text}
    elif field == "environment's name":
        values["environment"] = {text: "1"}
    else:
        *above, last = field.split(".")
        inner = values
        for name in above:
            inner = inner[name]
        inner[last] = text
    return Job.model_validate(values)


def attempts(campaign: Campaign) -> Iterator[Attempt]:
    rng = campaign.random("injections")
    cases = [(field, target, text) for field in FIELDS for target in TARGETS for text in HOSTILE]
    chosen = rng.sample(cases, min(len(cases), campaign.count(len(cases))))
    stubs = campaign.place("stubs")
    for name in STUBS:
        (stubs / name).write_text("#!/bin/sh\nexit 0\n")
        (stubs / name).chmod(0o755)
    yield from campaign.in_pairs(partial(attempt, campaign, stubs, *case) for case in sorted(chosen))


def attempt(campaign: Campaign, stubs: Path, field: str, target: str, text: str) -> Attempt:
    folder = campaign.place("export")
    canary = folder / "canary"
    hostile = text.format(*2 * [f"touch {canary}"])
    why = exported_badly(field, target, hostile, folder / "exported", stubs, canary)
    command = f"trimaran export JOB --to {target}"
    return Attempt(f"to {target}", why, f"{field} = {hostile!r}", command)


def exported_badly(field: str, target: str, hostile: str, folder: Path, stubs: Path, canary: Path) -> str:
    try:
        job = hostile_job(field, hostile)
        files = TARGETS[target](job).files
        name = plain_name(job.name)
    except (Mistake, ValueError):  # pydantic's is one; the command line makes a sentence of it
        return ""
    if "/" in name or name.startswith("."):
        return f"the files would go to {name!r}"
    folder.mkdir()
    for file, written in files.items():
        path = folder / file
        if path.parent != folder:
            return f"writes {file!r}, outside of its folder"
        path.write_text(written)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        if path.suffix in (".sh", ".slurm") and (why := ran_badly(path, stubs, canary)):
            return why
    return ""


def ran_badly(script: Path, stubs: Path, canary: Path) -> str:
    parsed = subprocess.run(["bash", "-n", script.name], cwd=script.parent, capture_output=True, text=True, check=False)
    if parsed.returncode != 0:
        return f"bash -n: {parsed.stderr.strip()[:120]}"
    variables = {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_NNODES": "1",
        "HOME": str(script.parent),
    }
    try:
        subprocess.run(
            ["bash", script.name], cwd=script.parent, env=variables, capture_output=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{script.name} with stubs hung"
    return f"text of the job ran in {script.name}" if canary.exists() else ""
