"""Seconds of one training step: the slowest stage times the micro batches, the bubble, communication, the optimizer.

Every part is a small expression; FLOPs, bytes and seconds are in the names.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimaran.cost.columns import COMPUTE_BYTES, Columns, RecomputeCode, ScheduleCode, is_compiled
from trimaran.cost.constants import Constants, constants_of
from trimaran.cost.gemm import gemm_seconds
from trimaran.cost.stages import stage_layer_counts, stage_parameters
from trimaran.spec import Cluster, TrainerProfile

# Bytes that elementwise kernels move per token and hidden element in a layer's forward pass (2-byte values): two norms,
# two residual sums with dropout on every tensor rank; bias, activation and transposes on the rank's own part.
WHOLE_BYTES, CUT_BYTES = 20, 28
# Bytes per attention score: written, masked and normalised, dropped out, read (forward); the same and more (backward).
SOFTMAX_FORWARD_BYTES, SOFTMAX_BACKWARD_BYTES = 11, 16
LOSS_BYTES = 26  # per logit: cast to fp32, maximum, exponential, sum, gradient
# The same where a compiler joins kernels: what takes as long as they do in the profile of our trainer on an H200
# (docs/gpu.md), at the speed that a probe measures. And what quantizing to 8 bits adds: the largest absolute value,
# each tensor and its transpose written.
COMPILED_WHOLE_BYTES, COMPILED_CUT_BYTES, COMPILED_LOSS_BYTES = 17, 21, 12
QUANTIZE_BYTES = 72
FUSED_ADAM_BYTES = 28  # per parameter, in fp32: gradient, value and two moments read, all but the first written
# Tokens at which flash attention on a GPU loses half: on an H200 it reaches 0.39 of the peak at 2048, 0.52 at 8192.
FLASH_HALF_SEQ = 1000


class Machine:
    """The scalars of a cluster that the expressions need."""

    def __init__(self, cluster: Cluster, trainer: TrainerProfile, precision: Any, k: Constants | None = None) -> None:
        self.cluster, self.trainer, self.k = cluster, trainer, k or constants_of(cluster)
        peak_tflops = cluster.device.peak_tflops
        self.peak_flops = peak_tflops[precision] * reachable_share(cluster, precision) * 1e12  # of the layers' GEMMs
        # Of attention and logits, which stay in 16 bits when the layers go to 8.
        self.wide_peak_flops = peak_tflops["bf16" if precision == "fp8" else precision] * 1e12
        self.memory_bytes_per_s = cluster.device.memory_gb_per_s * 1e9 * self.k.memory_efficiency
        self.inside_bytes_per_s = cluster.inside.gb_per_s * 1e9 * self.k.inside_share
        self.between_bytes_per_s = cluster.between.gb_per_s * 1e9


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step and where they go. `layer_*` and `head` are per micro batch, the rest per step."""

    seconds: Any
    layer_compute: Any
    layer_tensor_parallel: Any
    head: Any
    transfer: Any
    first_stage: Any
    middle_stage: Any
    last_stage: Any
    bubble: Any
    reduction: Any
    optimizer: Any


def reachable_share(cluster: Cluster, precision: Any) -> float:
    """GEMMs in 8 bits reach a smaller share of their peak than those in 16 bits, which the constants describe: in the
    ratio of the best measured of both."""
    best, peak = cluster.device.matmul_tflops, cluster.device.peak_tflops
    if precision != "fp8" or not {"bf16", "fp8"} <= set(best):
        return 1.0
    return best["fp8"] / peak["fp8"] / (best["bf16"] / peak["bf16"])


def step_time(c: Columns, cluster: Cluster, trainer: TrainerProfile, k: Constants | None = None) -> StepTime:
    machine = Machine(cluster, trainer, c.precision, k)
    forward, backward = layer_compute_seconds(machine, c)
    attention_repeated = np.where(c.recompute == RecomputeCode.SELECTIVE, attention_seconds(machine, c)[0], 0.0)
    repeated = np.where(c.recompute == RecomputeCode.FULL, forward, attention_repeated)
    compute = forward + backward + repeated
    tensor_parallel = tensor_parallel_seconds(machine, c)
    head = head_seconds(machine, c)
    transfer = transfer_seconds(machine, c) + machine.k.micro_batch_ms * 1e-3
    first_layers, middle_layers, last_layers = stage_layer_counts(c)
    layer = compute + tensor_parallel
    first, middle, last = (count * layer + transfer for count in (first_layers, middle_layers, last_layers))
    last = last + head
    first = np.where(c.pp == 1, last, first)
    slowest = np.maximum(np.maximum(first, last), np.where(c.pp > 2, middle, 0.0))
    every = np.where(c.pp == 1, slowest, first + last + np.maximum(c.pp - 2, 0) * middle)
    waits = waiting_share(c, cluster)
    fill = np.where(c.pp == 1, 0.0, every - slowest) / c.virtual * waits
    # ZB-H1: the weights' half of backward fills most of it.
    fill = np.where(c.schedule == ScheduleCode.ZERO_BUBBLE, fill / 3, fill)
    busy = c.micro_batches * (waits * slowest + (1 - waits) * every / c.pp)
    reduction = reduction_seconds(machine, c)
    optimizer = optimizer_seconds(machine, c) + accumulation_seconds(machine, c)
    hidden = hidden_seconds(c, trainer, reduction, busy)
    seconds = (busy + fill + reduction - hidden + optimizer) * c.slowdown
    return StepTime(
        seconds=seconds,
        layer_compute=compute,
        layer_tensor_parallel=tensor_parallel,
        head=head,
        transfer=transfer,
        first_stage=first,
        middle_stage=middle,
        last_stage=last,
        bubble=fill / (busy + fill),
        reduction=reduction - hidden,
        optimizer=optimizer,
    )


def waiting_share(c: Columns, cluster: Cluster) -> Any:
    """1 where a stage that waits is lost time. Processes that share cores leave theirs to the others, so that no bubble
    and no uneven stage costs time as long as the ranks of one stage keep all cores busy."""
    if cluster.cores is None or cluster.devices_per_node <= cluster.cores:
        return 1.0
    return np.clip(1.0 - c.dp * c.tp / (cluster.cores * cluster.nodes), 0.0, 1.0)


OVERLAP = 0.7  # share of the compute behind which a trainer that overlaps can hide its communication


def hidden_seconds(c: Columns, trainer: TrainerProfile, reduction: Any, busy: Any) -> Any:
    """Of the data-parallel traffic: what goes on behind the last micro batch's backward pass, or under ZeRO 2 and 3
    without a pipeline behind all of them."""
    if not trainer.overlaps_data_parallel:
        return 0.0
    behind = np.where((c.zero >= 2) & (c.pp == 1), busy, busy / c.micro_batches / 2)
    return np.minimum(reduction, OVERLAP * behind)


def layer_gemms(c: Columns) -> tuple[tuple[Any, Any], ...]:
    """(columns, inner) of a layer's GEMMs on one tensor rank: qkv, output, up (and gate), down."""
    return (
        ((c.hidden + 2 * c.kv_width) / c.tp, c.hidden),
        (c.hidden, c.hidden / c.tp),
        ((c.matrices - 1) * c.ffn / c.tp, c.hidden),
        (c.hidden, c.ffn / c.tp),
    )


def layer_compute_seconds(machine: Machine, c: Columns) -> tuple[Any, Any]:
    """Forward and backward of one layer for one micro batch, without communication."""
    device, peak, k = machine.cluster.device, machine.peak_flops, machine.k
    forward = backward = 0.0
    for columns, inner in layer_gemms(c):
        forward = forward + gemm_seconds(device, peak, k, c.tokens, columns, inner)
        backward = backward + gemm_seconds(device, peak, k, c.tokens, inner, columns)  # of the input
        backward = backward + gemm_seconds(device, peak, k, columns, inner, c.tokens)  # of the weights
    attention_forward, attention_backward = attention_seconds(machine, c)
    elementwise = elementwise_seconds(machine, c)
    power_forward, power_backward = power_seconds(machine, c)
    forward = longer(forward + attention_forward + elementwise, power_forward, CLOCK)
    backward = longer(backward + attention_backward + 2 * elementwise, power_backward, CLOCK)
    both, host = forward + backward, (1 + BACKWARD_STARTS) * k.layer_us * 1e-6
    waiting = longer(both, host, HOST) / both  # a host that is late in one pass may catch up in the other
    return forward * waiting, backward * waiting


def power_seconds(machine: Machine, c: Columns) -> tuple[Any, Any]:
    """What the power limit allows: GEMMs and attention take the energy. Other work hardly counts, because the chip
    draws less meanwhile and then runs the GEMMs faster. A FLOP of attention takes a little less."""
    gemms = sum(2 * c.tokens * columns * inner for columns, inner in layer_gemms(c)) / machine.peak_flops
    attention = ATTENTION_ENERGY * attention_flops(machine, c) / machine.wide_peak_flops
    limit = machine.k.sustained_efficiency
    return (gemms + attention) / limit, (2 * gemms + 2.5 * attention) / limit


ATTENTION_ENERGY = 0.8  # of a FLOP, a GEMM's being 1: steps of 2048 and 4096 tokens on an H200
BACKWARD_STARTS = 1.3  # autograd starts more kernels than the forward pass, but without Python between them
# How sharply the longer of two counts. The device works while the host starts what comes next, and both jitter; a
# chip's clock follows what it draws, and is a little late.
HOST, CLOCK = 6, 8


def longer(one_seconds: Any, other_seconds: Any, sharpness: int) -> Any:
    return (one_seconds**sharpness + other_seconds**sharpness) ** (1 / sharpness)


def attention_flops(machine: Machine, c: Columns) -> Any:
    """Scores and values, forward. Flash attention leaves out what a causal mask hides."""
    return (2 if machine.trainer.attention == "flash" else 4) * c.tokens * c.seq * c.hidden / c.tp


def attention_seconds(machine: Machine, c: Columns) -> tuple[Any, Any]:
    """Scores, softmax and values. Without flash attention the scores travel through memory."""
    flops = attention_flops(machine, c)
    slowdown = np.where((c.hidden / c.heads) % 8 == 0, 1.0, machine.k.odd_head_slowdown)
    if machine.trainer.attention == "flash":
        efficiency = machine.k.flash_efficiency / short_sequence(machine.cluster, c.seq)
        causal_seconds = flops * slowdown / (machine.wide_peak_flops * efficiency)
        return causal_seconds, 2.5 * causal_seconds  # flash repeats the scores in its backward pass
    gemm = flops * slowdown / (machine.wide_peak_flops * machine.k.attention_efficiency)
    scores = c.mbs * c.heads / c.tp * c.seq**2
    fused = fused_softmax(c) if machine.trainer.attention == "fused-softmax" else False
    passes = np.where(fused, 1.0, 2.0) / machine.memory_bytes_per_s
    forward = gemm + scores * SOFTMAX_FORWARD_BYTES * passes
    return forward, 2 * gemm + scores * SOFTMAX_BACKWARD_BYTES * passes


def short_sequence(cluster: Cluster, seq: Any) -> Any:
    """What flash attention over so many tokens loses, as a factor. A CPU has no tiles to fill."""
    return 1 + FLASH_HALF_SEQ / seq if cluster.device.is_gpu else 1.0


def fused_softmax(c: Columns) -> Any:
    """Where Megatron's fused kernel applies: 16 < seq <= 2048, seq % 4 = 0, (heads/tp) x micro batch % 4 = 0."""
    return (c.seq > 16) & (c.seq <= 2048) & (c.seq % 4 == 0) & (c.heads / c.tp * c.mbs % 4 == 0)


def elementwise_seconds(machine: Machine, c: Columns) -> Any:
    compiled = is_compiled(c, machine.cluster, machine.trainer)
    whole = np.where(compiled, COMPILED_WHOLE_BYTES, WHOLE_BYTES) / np.where(c.sequence_parallel, c.tp, 1)
    cut = np.where(compiled, COMPILED_CUT_BYTES, CUT_BYTES) + (c.precision == "fp8") * QUANTIZE_BYTES
    width = COMPUTE_BYTES[c.precision] / 2
    return c.tokens * c.hidden * (whole + cut / c.tp) * width / machine.memory_bytes_per_s


def head_seconds(machine: Machine, c: Columns) -> Any:
    """Logits and loss on the last stage: three GEMMs, never recomputed, and the loss over fp32 logits."""
    device, peak, k = machine.cluster.device, machine.wide_peak_flops, machine.k
    columns = c.vocab_rows / c.tp
    gemms = (
        gemm_seconds(device, peak, k, c.tokens, columns, c.hidden)
        + gemm_seconds(device, peak, k, c.tokens, c.hidden, columns)
        + gemm_seconds(device, peak, k, columns, c.hidden, c.tokens)
    )
    loss_bytes = np.where(is_compiled(c, machine.cluster, machine.trainer), COMPILED_LOSS_BYTES, LOSS_BYTES)
    return gemms + c.tokens * columns * loss_bytes / machine.memory_bytes_per_s


def tensor_parallel_seconds(machine: Machine, c: Columns) -> Any:
    """Two all-reduces a layer forward, two backward, two more when it is recomputed.

    Sequence parallelism moves the same bytes as all-gathers and reduce-scatters.
    """
    payload_bytes = c.tokens * c.hidden * COMPUTE_BYTES[c.precision]
    inside = c.devices_per_node % c.tp == 0
    rate = np.where(inside, machine.inside_bytes_per_s, machine.between_bytes_per_s * machine.k.between_share)
    latency_us = machine.k.collective_us + np.where(inside, 0.0, machine.cluster.between.latency_us)
    one = (c.tp - 1) * (2 / c.tp * payload_bytes / rate + latency_us * 1e-6)
    return one * (4 + np.where(c.recompute == RecomputeCode.FULL, 2, 0))


def transfer_seconds(machine: Machine, c: Columns) -> Any:
    """Activations to the next stage and gradients back; the replicas of a node share its network."""
    payload_bytes = c.tokens * c.hidden * COMPUTE_BYTES[c.precision]
    sharing = np.maximum(1, c.devices_per_node / c.tp)
    crosses = c.tp * c.dp >= c.devices_per_node  # ranks go tp, dp, pp: a stage fills whole nodes or fits inside one
    rate = np.where(
        crosses, machine.between_bytes_per_s * machine.k.between_share / sharing, machine.inside_bytes_per_s
    )
    latency_us = np.where(crosses, machine.cluster.between.latency_us, machine.cluster.inside.latency_us)
    return np.where(c.pp > 1, 2 * (payload_bytes / rate + latency_us * 1e-6) * c.virtual, 0.0)


def rank_parameters(c: Columns) -> Any:
    """Of the fullest stage on one tensor rank: the slowest to reduce and to update."""
    return np.maximum(stage_parameters(c, "first"), stage_parameters(c, "middle"))


def reduction_seconds(machine: Machine, c: Columns) -> Any:
    """All-reduce of the gradients over dp, or their reduce-scatter and the gather of new weights under ZeRO: the same
    bytes, once a step. Without a pipeline ZeRO 2 scatters the gradients of every micro batch, and ZeRO 3 gathers the
    weights twice in each. The tensor ranks of a node share its network."""
    gradient_bytes = rank_parameters(c) * machine.trainer.gradient_bytes[c.precision]
    weight_bytes = rank_parameters(c) * COMPUTE_BYTES[c.precision]
    each = np.where(c.pp == 1, c.micro_batches, 1.0)
    scattered = gradient_bytes * np.where(c.zero >= 2, each, 1.0)
    gathered = np.where(c.zero == 0, gradient_bytes, weight_bytes * np.where(c.zero == 3, 2 * each, 1.0))
    neighbours = np.maximum(1, c.devices_per_node // c.tp)
    network = machine.between_bytes_per_s * machine.k.reduction_share / np.minimum(c.tp, c.devices_per_node)
    rate = np.where(c.dp > neighbours, network, machine.inside_bytes_per_s)
    moved_seconds = (c.dp - 1) / c.dp * (scattered + gathered) / rate
    return np.where(c.dp > 1, moved_seconds + machine.k.reduction_ms * 1e-3 * c.dp, 0.0)


def optimizer_seconds(machine: Machine, c: Columns) -> Any:
    """Norm, clip, Adam and the cast to compute precision: memory traffic over the parameters a device updates."""
    shard = np.where(c.zero >= 1, c.dp, 1)
    update = machine.trainer.update_bytes.get(c.optimizer, FUSED_ADAM_BYTES)
    return rank_parameters(c) * (update / shard + 6) / machine.memory_bytes_per_s


def accumulation_seconds(machine: Machine, c: Columns) -> Any:
    """Gradients of several micro batches added up, where the trainer does so in a pass of its own."""
    passes = np.where(c.micro_batches > 1, c.micro_batches, 0)
    return passes * rank_parameters(c) * machine.trainer.accumulation_bytes / machine.memory_bytes_per_s
