"""Weights, gradients and optimizer states of one rank of our own engine, to the byte: tensor by tensor, because
sharding rounds up each one. What the columns of `memory` estimate for any number of layouts."""

from dataclasses import dataclass
from math import ceil, prod

from trimaran.cost.columns import COMPUTE_BYTES, STATE_BYTES
from trimaran.spec import Job
from trimaran.spec.own_engine import BLOCK_8BIT, LEAST_8BIT
from trimaran.spec.tensors import stage_tensors
from trimaran.spec.trainer import Optimizer

FP32 = 4
CODEBOOK = 256 * FP32  # of each 8-bit moment: what its 256 codes mean


@dataclass(frozen=True)
class States:
    """Bytes. Under ZeRO 3 without a pipeline, weights are whole and gathered only block by block."""

    weights: int  # what the model computes with
    master: int  # fp32 originals, where these are not the weights themselves
    gradients: int  # while they accumulate
    reduced: int  # gradients as the optimizer gets them
    optimizer: int


def rank_states(job: Job, rank: int) -> States:
    """FSDP2 cuts rows: every rank has room for ceil(rows / dp) of them, the last ones use fewer or none."""
    layout, compute = job.layout, COMPUTE_BYTES[job.precision]
    stage, dp_rank = rank // (layout.dp * layout.tp), rank // layout.tp % layout.dp
    sharded = layout.zero > 0 and layout.dp > 1
    weights = master = gradients = reduced = optimizer = 0
    for number in range(stage, layout.stages, layout.pp):
        for tensor in stage_tensors(job.model, layout, number):
            rows, *columns = tensor.local_shape(layout.tp)
            width = prod(columns)
            room = ceil(rows / layout.dp) if sharded else rows
            used = min(max(rows - room * dp_rank, 0), room) if sharded else rows
            weights += (room * layout.dp if sharded else rows) * width * compute
            master += room * width * FP32 if sharded or compute != FP32 else 0
            # A lone micro batch's gradients are reduced as they come, block by block.
            shards = sharded and layout.pp == 1 and (layout.zero >= 2 or job.micro_batches == 1)
            gradients += (room if shards else rows) * width * FP32
            reduced += room * width * FP32
            optimizer += moment_bytes(job.optimizer, used * width) + FP32  # and the count of steps
    return States(weights, master, gradients, reduced, optimizer)


def moment_bytes(optimizer: Optimizer, elements: int) -> int:
    """Both moments of a tensor's local part."""
    if optimizer != "adam-8bit":
        return int(elements * STATE_BYTES[optimizer])
    if elements < LEAST_8BIT or elements % BLOCK_8BIT:
        return 2 * FP32 * elements
    return int(elements * STATE_BYTES[optimizer]) + 2 * CODEBOOK
