"""Shell scripts that start a trainer: torchrun on every node with the trainer's flags, and SLURM's batch script."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from trimaran.export.adapt import Reason
from trimaran.export.flags import Line, Unquoted
from trimaran.export.quoting import one_line, plain_name, shell_word
from trimaran.spec import Job

CPU_DEVICES = ("cpu-", "a64fx")  # their nodes have no GPUs to ask SLURM for
SITE = "# Your site may want more: --account, --partition, --constraint, --qos, --cpus-per-task."
NAME, MODEL = "# Job: ", "# Model: "  # in the first lines: no trainer has a flag for these
_ARRAYS = "DISTRIBUTED MODEL LAYOUT BATCH OPTIMIZER DATA OUTPUT DEEPSPEED TITAN"
OF_THE_SCRIPT = {"HERE", "NNODES", "GPUS_PER_NODE", "LAUNCHER", *(f"{name}_ARGS" for name in _ARRAYS.split())}
# Bash cannot pass these on: they are read-only, change how it splits words, or have values of its own. Assigning to
# those that are integers (RANDOM, OPTIND) even runs the commands in an array's index.
OF_BASH = (
    "BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_CMDS BASH_COMMAND BASH_LINENO BASH_SOURCE BASH_SUBSHELL"
    " BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD IFS LINENO OPTIND PIPESTATUS PPID"
    " RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID _"
)


def launch_script(
    job: Job, trainer: str, entry: str, blocks: Mapping[str, list[Line]], site: list[str], exports: list[str]
) -> str:
    """Started once on every node, with or without SLURM. LAUNCHER=echo shows the command instead."""
    cluster = job.cluster
    what = f"{cluster.devices} devices of {one_line(cluster.name)} with {trainer}"
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
        lines += ["", f"{name}_ARGS=(", *(f"    {quote(line)}" for line in block), ")"]
    command = ['exec $LAUNCHER "${DISTRIBUTED_ARGS[@]}"', f'"$MEGATRON/{entry}"']
    command += [f'"${{{name}_ARGS[@]}}"' for name in blocks]
    return "\n".join([*lines, "", " \\\n    ".join(command), ""])


def quote(line: Line) -> str:
    return " ".join(word if isinstance(word, Unquoted) else shell_word(word) for word in line)


def environment_lines(job: Job) -> list[str]:
    kept = {name: value for name, value in job.environment.items() if why_no_variable(name) is None}
    return [f"export {name}={shell_word(value)}" for name, value in kept.items()]


def unsupported_environment(job: Job) -> Iterator[Reason]:
    for name in job.environment:
        if why := why_no_variable(name):
            yield f"environment.{name}", f"{name!r} {why}; it is left out."


def why_no_variable(name: str) -> str | None:
    """Why a script cannot set it for the trainer, as the end of a sentence."""
    if not (name.isascii() and name.isidentifier()):
        return "is not a valid name of a shell variable"
    if name in OF_THE_SCRIPT:
        return "is a variable of the script itself"
    return "is a variable of bash itself" if name in OF_BASH.split() else None


def read_names(text: str) -> dict[str, str]:
    """The names of the job and of its model, from the comments of an exported script."""
    names: dict[str, str] = {}
    for line in text.split("\n", 6)[:6]:
        for mark, path in ((NAME, "name"), (MODEL, "model.name")):
            if line.startswith(mark):
                with suppress(ValueError):
                    names[path] = str(json.loads(line.removeprefix(mark)))
    return names


def sbatch_header(job: Job, tasks_per_node: int, *more: str) -> list[str]:
    cluster = job.cluster
    gpus = [] if cluster.device.name.startswith(CPU_DEVICES) else [f"--gres=gpu:{cluster.devices_per_node}"]
    options = [
        f"--job-name={plain_name(job.name)}",
        f"--nodes={cluster.nodes}",
        f"--ntasks-per-node={tasks_per_node}",
        *gpus,
        "--time=20:00:00",
        "--output=%x-%j.out",
        *more,
    ]
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), SITE, ""]


def slurm_script(job: Job, script: str) -> str:
    """Runs a launch script as one task on every node, which starts the node's processes; rendezvous on the first."""
    lines = [
        *sbatch_header(job, tasks_per_node=1),
        "set -e",
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        "export MASTER_ADDR",
        'export MASTER_PORT="${MASTER_PORT:-6000}"',
        "",
        "# When a task ends the others get 60 s; when one fails, all end.",
        f'srun --wait=60 --kill-on-bad-exit=1 --jobid "$SLURM_JOB_ID" bash "$SLURM_SUBMIT_DIR/{script}"',
        "",
    ]
    return "\n".join(lines)
