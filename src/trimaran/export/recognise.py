"""Which launch file is this? Decided by its content, as the ledger does with logs. Our own Job files are not asked."""

import json
import tomllib

from trimaran.export.deepspeed_json import from_deepspeed_json, is_deepspeed_json
from trimaran.export.found import Found
from trimaran.export.launched import launched
from trimaran.export.megatron_deepspeed import from_megatron_deepspeed, is_megatron_deepspeed
from trimaran.export.megatron_lm import from_megatron_lm
from trimaran.export.torchtitan import from_torchtitan
from trimaran.export.trimaran import from_slurm

TORCHTITAN = {"job", "training", "parallelism", "optimizer", "lr_scheduler", "activation_checkpoint", "checkpoint"}


def read(text: str, name: str) -> Found | None:
    """What the file states of a Job, or None where it is no launch file."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError:
            return None
        return from_deepspeed_json(document) if is_deepspeed_json(document) else None
    if _is_torchtitan(text):
        return from_torchtitan(text, name)
    ours = from_slurm(text)
    if ours is not None:
        return ours
    started = launched(text)
    if started is None:
        return None
    return from_megatron_deepspeed(started) if is_megatron_deepspeed(started) else from_megatron_lm(started)


def _is_torchtitan(text: str) -> bool:
    """A TOML file with at least two of the tables that torchtitan has."""
    try:
        return len(TORCHTITAN & tomllib.loads(text).keys()) >= 2
    except tomllib.TOMLDecodeError:
        return False
