"""The scripts that start torchtitan: run.sh once on every node, and the batch script that does so under SLURM."""

import json

from trimaran.export.launch import NAME, environment_lines
from trimaran.export.slurm import launching
from trimaran.spec import Job

RUN, BATCH = "run.sh", "train.slurm"


def scripts(job: Job, toml: str) -> dict[str, str]:
    return {RUN: _run(job, toml), BATCH: launching(job, RUN)}


def _run(job: Job, toml: str) -> str:
    """More words after its name go to torchtitan, such as --training.steps 20. LAUNCHER=echo shows the command."""
    cluster, layout = job.cluster, job.layout
    last_stage = (layout.pp - 1) * layout.dp * layout.tp % cluster.devices_per_node
    lines = [
        "#!/bin/bash",
        NAME + json.dumps(job.name),
        f"# torchtitan 0.2.2. Written by Trimaran. Start it on every node, or with `sbatch {BATCH}` once.",
        "set -euo pipefail",
        "",
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        'TOKENIZER="${TOKENIZER:-$HERE/tokenizer}"  # the folder of a Hugging Face tokenizer',
        'DATASET_PATH="${DATASET_PATH:-}"  # a copy of c4; without it torchtitan streams it from the hub',
        "",
        f"NNODES={cluster.nodes}",
        f"GPUS_PER_NODE={cluster.devices_per_node}",
        'MASTER_ADDR="${MASTER_ADDR:-localhost}"',
        'MASTER_PORT="${MASTER_PORT:-6000}"',
        f'LOG_RANK="${{LOG_RANK:-{last_stage}}}"  # of each node; the loss is known on the last pipeline stage',
        "",
        'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"',
        'export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"',
        *environment_lines(job),
        "",
        'LAUNCHER="${LAUNCHER:-python -u -m torch.distributed.run}"',
        "DISTRIBUTED_ARGS=(",
        '    --nproc_per_node "$GPUS_PER_NODE"',
        '    --nnodes "$NNODES"',
        '    --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT"',
        "    --rdzv_backend c10d",
        '    --local-ranks-filter "$LOG_RANK"',
        "    --role rank",
        "    --tee 3",
        ")",
        f'TITAN_ARGS=(--job.config_file "$HERE/{toml}" --model.hf_assets_path "$TOKENIZER")',
        'if [ -n "$DATASET_PATH" ]; then TITAN_ARGS+=(--training.dataset_path "$DATASET_PATH"); fi',
        "",
        'exec $LAUNCHER "${DISTRIBUTED_ARGS[@]}" -m torchtitan.train "${TITAN_ARGS[@]}" "$@"',
        "",
    ]
    return "\n".join(lines)
