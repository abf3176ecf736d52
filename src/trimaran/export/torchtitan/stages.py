"""How torchtitan splits layers into pipeline stages: by a rule with two weights, or as a list of modules."""

import math
from collections.abc import Sequence
from typing import Any

from trimaran.export.flags import Fields
from trimaran.export.torchtitan.config import TitanConfig
from trimaran.export.torchtitan.keys import SCHEDULES
from trimaran.spec import Job, Mistake
from trimaran.spec.layout import weighted_layers

FIRST_LESS = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST_LESS = "parallelism.pipeline_parallel_last_stage_less_layers"
PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
MODULES = "parallelism.module_fqns_per_model_part"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
ONE_STAGE = ("gpipe", "1f1b")  # schedules with one stage per device
READ = {written.lower(): ours for ours, written in SCHEDULES.items()} | {"zbvzerobubble": "zero-bubble"}
V_SHAPED = "zbvzerobubble"


def split_by_rule(layers: int, stages: int, first: int, last: int) -> tuple[int, ...] | None:
    """Layers of each stage where the embedding counts as `first` layers and the head as `last`; None: impossible.

    The remainder goes to the first stages, one each.
    """
    share, extra = divmod(layers + first + last, stages)
    if share < 1 or first > share or last > share:
        return None
    units = [share + (stage < extra) for stage in range(stages)]
    units[0] -= first
    units[-1] -= last
    return tuple(units)


def stage_keys(job: Job) -> dict[str, Any]:
    """Keys that make torchtitan build the Job's own stages."""
    layout = job.layout
    keys: dict[str, Any] = {"pipeline_parallel_schedule": SCHEDULES[layout.schedule]}
    if layout.pp == 1:
        return keys
    layers = job.stage_layers
    for less in (0, 1):
        units = job.model.layers + 2 * less
        # With a zero-bubble schedule the rule needs two stages per device.
        by_rule = layout.schedule != "zero-bubble" and units % layout.stages == 0
        if by_rule and split_by_rule(job.model.layers, layout.stages, less, less) == layers:
            return keys | {
                "pipeline_parallel_first_stage_less_layers": less,
                "pipeline_parallel_last_stage_less_layers": less,
                "pipeline_parallel_layers_per_stage": units // layout.stages,
            }
    return keys | {"module_fqns_per_model_part": _modules(layers)}


def _modules(stages: Sequence[int]) -> list[list[str]]:
    parts, at = [], 0
    for count in stages:
        parts.append([f"layers.{layer}" for layer in range(at, at + count)])
        at += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def read_stages(config: TitanConfig, layers: int | None) -> Fields:
    """Schedule, virtual stages and split; without the model's layers the split is a guess."""
    pp, written = config.positive("parallelism.pipeline_parallel_degree"), str(config.get(SCHEDULE))
    schedule = READ.get(written.lower())
    first, last, per_stage = config.get(FIRST_LESS), config.get(LAST_LESS), config.get(PER_STAGE)
    modules = config.get(MODULES)
    if pp == 1:
        return {"layout.schedule": schedule} if schedule not in (None, "interleaved") else {}
    if schedule is None:
        raise Mistake(
            f"{config.name}: {SCHEDULE} is {written!r}, which a Job cannot express;"
            f" it can {', '.join(SCHEDULES.values())}."
        )
    if modules is not None:
        parts: tuple[int, ...] | None = tuple(sum("layers." in str(name) for name in part) for part in modules)
        stages = len(modules)
    else:
        stages = pp if schedule in ONE_STAGE else 2 * pp
        if per_stage is not None and layers is not None:
            stages = math.ceil((layers + first + last) / config.positive(PER_STAGE))
        parts = split_by_rule(layers, stages, first, last) if layers is not None else None
    if stages % pp or stages == 0:
        raise Mistake(f"{config.name}: {stages} stages cannot be divided evenly among pp {pp}.")
    if schedule == "zero-bubble" and stages > pp:
        config.report(SCHEDULE)  # a Job's zero-bubble has one stage per device: all layers of the device
        parts = _layers_by_device(parts, pp, written.lower() == V_SHAPED) if parts is not None else None
        stages = pp
    split = _name_split(parts, layers) if parts is not None else "weighted" if first and last else "even"
    return {"layout.schedule": schedule, "layout.virtual_stages": stages // pp, "layout.split": split}


def _layers_by_device(parts: Sequence[int], pp: int, v_shaped: bool) -> tuple[int, ...]:
    """The layers of each device: stages are assigned round-robin, or in a V, down and up again."""
    device_of = [stage % pp for stage in range(len(parts))]
    if v_shaped:
        device_of = [stage if stage < pp else 2 * pp - 1 - stage for stage in range(len(parts))]
    return tuple(
        sum(count for count, owner in zip(parts, device_of, strict=True) if owner == device) for device in range(pp)
    )


def _name_split(parts: tuple[int, ...], layers: int | None) -> str | tuple[int, ...]:
    """`even` or `weighted` where they give the same layers."""
    if len(set(parts)) == 1:
        return "even"
    return "weighted" if weighted_layers(layers or sum(parts), len(parts)) == parts else parts
