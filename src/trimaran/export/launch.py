"""The shell script around a trainer's flags: blocks of flags, the variables of the site, and torchrun on every node."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from trimaran.export.entries import Line, Shell
from trimaran.export.exported import Cannot
from trimaran.spec import Job

NAME, MODEL = "# Job: ", "# Model: "  # in the first lines: no trainer has a word for these
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def launch_script(
    job: Job, what: str, entry: str, blocks: Mapping[str, Sequence[Line]], site: Sequence[str], exports: Sequence[str]
) -> str:
    """Started once on every node; alone, it needs nothing of SLURM. LAUNCHER=echo shows the command instead."""
    cluster = job.cluster
    lines = [
        "#!/bin/bash",
        NAME + json.dumps(job.name),
        MODEL + json.dumps(job.model.name),
        f"# {what}. Written by Trimaran. Start it on every node, or with `sbatch train.slurm` once.",
        "set -euo pipefail",
        "",
        *site,
        "",
        f"NNODES={cluster.nodes}",
        f"GPUS_PER_NODE={cluster.devices_per_node}",
        'NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-0}}"',
        'MASTER_ADDR="${MASTER_ADDR:-localhost}"',
        'MASTER_PORT="${MASTER_PORT:-6000}"',
        "",
        *exports,
        *environment_lines(job),
        "",
        'LAUNCHER="${LAUNCHER:-python -u -m torch.distributed.run}"',
        "DISTRIBUTED_ARGS=(",
        '    --nproc_per_node "$GPUS_PER_NODE"',
        '    --nnodes "$NNODES"',
        '    --node_rank "$NODE_RANK"',
        '    --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"',
        "    --rdzv_backend c10d",
        "    --max_restarts 0",
        "    --tee 3",
        ")",
    ]
    for name, block in blocks.items():
        lines += ["", f"{name}_ARGS=(", *(f"    {written(line)}" for line in block), ")"]
    command = ['exec $LAUNCHER "${DISTRIBUTED_ARGS[@]}"', f'"$MEGATRON/{entry}"']
    command += [f'"${{{name}_ARGS[@]}}"' for name in blocks]
    return "\n".join([*lines, "", " \\\n    ".join(command), ""])


def written(line: Line) -> str:
    return " ".join(word if isinstance(word, Shell) else shlex.quote(word) for word in line)


def environment_lines(job: Job) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items() if is_variable(name)]


def environment_lost(job: Job) -> list[Cannot]:
    return [
        Cannot(f"environment.{name}", f"{name!r} cannot name a variable of a shell; it is left out.")
        for name in job.environment
        if not is_variable(name)
    ]


def is_variable(name: str) -> bool:
    return bool(_VARIABLE.fullmatch(name))


def names_in(text: str) -> dict[str, str]:
    """The names of the job and of its model, as an exported script carries them."""
    found: dict[str, str] = {}
    for line in text.split("\n", 6)[:6]:
        for mark, path in ((NAME, "name"), (MODEL, "model.name")):
            if line.startswith(mark):
                try:
                    found[path] = str(json.loads(line.removeprefix(mark)))
                except ValueError:
                    continue
    return found
