"""What a Job can be exported to, by name."""

from collections.abc import Callable

from trimaran.export.deepspeed_json import to_deepspeed_json
from trimaran.export.exported import Exported
from trimaran.export.megatron_deepspeed import to_megatron_deepspeed
from trimaran.export.megatron_lm import to_megatron_lm
from trimaran.export.torchtitan import to_torchtitan
from trimaran.export.trimaran import to_slurm, to_trimaran
from trimaran.spec import Job

TARGETS: dict[str, Callable[[Job], Exported]] = {
    "megatron-deepspeed": to_megatron_deepspeed,
    "megatron-lm": to_megatron_lm,
    "torchtitan": to_torchtitan,
    "deepspeed-json": to_deepspeed_json,
    "slurm": to_slurm,
    "trimaran": to_trimaran,
}
