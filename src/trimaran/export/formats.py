"""The launch files of every trainer: TARGETS writes them, `read_launch_file` recognises them by their content."""

import json
import tomllib
from collections.abc import Callable

from trimaran.export.adapt import LaunchFiles
from trimaran.export.deepspeed_json import from_deepspeed_json, is_deepspeed_json, to_deepspeed_json
from trimaran.export.launch_command import read_launch_command
from trimaran.export.megatron_deepspeed import from_megatron_deepspeed, is_megatron_deepspeed, to_megatron_deepspeed
from trimaran.export.megatron_lm import from_megatron_lm, to_megatron_lm
from trimaran.export.partial_job import PartialJob
from trimaran.export.torchtitan.read import from_torchtitan
from trimaran.export.torchtitan.write import to_torchtitan
from trimaran.export.trimaran import from_slurm, to_slurm, to_trimaran
from trimaran.spec import Job

TARGETS: dict[str, Callable[[Job], LaunchFiles]] = {
    "megatron-deepspeed": to_megatron_deepspeed,
    "megatron-lm": to_megatron_lm,
    "torchtitan": to_torchtitan,
    "deepspeed-json": to_deepspeed_json,
    "slurm": to_slurm,
    "trimaran": to_trimaran,
}
TORCHTITAN = {"job", "training", "parallelism", "optimizer", "lr_scheduler", "activation_checkpoint", "checkpoint"}


def read_launch_file(text: str, name: str) -> PartialJob | None:
    """What the file states of a Job, or None where it is not a launch file. Our own job files are not launch files."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return from_deepspeed_json(document) if is_deepspeed_json(document) else None
    if _is_torchtitan(text):
        return from_torchtitan(text, name)
    ours = from_slurm(text)
    if ours is not None:
        return ours
    command = read_launch_command(text)
    if command is None:
        return None
    return from_megatron_deepspeed(command) if is_megatron_deepspeed(command) else from_megatron_lm(command)


def _is_torchtitan(text: str) -> bool:
    """A TOML file with at least two of the tables that torchtitan has."""
    try:
        return len(TORCHTITAN & tomllib.loads(text).keys()) >= 2
    except (ValueError, RecursionError):
        return False
