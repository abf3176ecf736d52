"""Constants: the physical values of a cluster that no data sheet states. Each has a prior; `learn` moves them."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from trimaran.spec import Cluster


@dataclass(frozen=True)
class Prior:
    """A plausible value, and by how much (standard deviation of its logarithm) it may differ on real machines."""

    value: float
    spread: float
    meaning: str


def prior(value: float, spread: float, meaning: str) -> Any:
    return field(metadata={"prior": Prior(value, spread, meaning)})


@dataclass(frozen=True)
class Constants:
    """The values in force, each with its prior."""

    gemm_efficiency: float = prior(0.85, 0.05, "share of the peak that a large, aligned GEMM reaches")
    sustained_efficiency: float = prior(
        4.0, 0.5, "share of the peak that the power limit allows on average over a step's GEMMs; above 1: no limit"
    )
    gemm_half_tokens: float = prior(200.0, 0.7, "tokens at which a GEMM loses half of that")
    gemm_half_width: float = prior(100.0, 0.5, "columns at which it does")
    wave_exponent: float = prior(1.0, 0.15, "exponent of wave quantization (1: as the arithmetic says)")
    misaligned_slowdown: float = prior(1.05, 0.05, "of a GEMM whose width is not a multiple of 64 elements")
    attention_efficiency: float = prior(0.35, 0.3, "share of the peak in the attention's batched GEMMs")
    flash_efficiency: float = prior(
        0.45, 0.3, "share of the peak in flash attention over a long sequence; its papers report 0.35 to 0.75"
    )
    odd_head_slowdown: float = prior(6.0, 0.4, "of attention whose head dimension is not a multiple of 8")
    memory_efficiency: float = prior(0.75, 0.12, "share of the memory's bandwidth in elementwise work")
    kernel_us: float = prior(5.0, 0.3, "microseconds that a GEMM takes at least")
    layer_us: float = prior(
        800.0, 0.5, "microseconds the host needs to launch a layer forward; small layers wait for it"
    )
    micro_batch_ms: float = prior(3.0, 0.8, "milliseconds per micro batch and stage that no operation explains")
    inside_share: float = prior(0.75, 0.6, "share of the inside link's bandwidth that tensor parallelism gets")
    collective_us: float = prior(
        20.0, 0.8, "microseconds an all-reduce of a layer takes at least, per further tensor rank"
    )
    between_share: float = prior(1.0, 0.8, "share of the network's bandwidth that the pipeline gets")
    reduction_share: float = prior(1.0, 0.8, "share of the network's bandwidth that data parallelism gets")
    reduction_ms: float = prior(3.0, 2.0, "milliseconds per rank of the data-parallel group and step")
    pressure_slowdown: float = prior(
        0.05, 0.5, "share of time lost when the memory is full and the allocator must retry"
    )
    state_share: float = prior(1.0, 0.1, "memory of the optimizer's states over what the formula says")
    activation_share: float = prior(1.0, 0.15, "memory of activations over what the formula says")
    buffer_share: float = prior(1.0, 0.6, "memory of fixed buffers over what the trainer states")

    def replace(self, **changes: float) -> "Constants":
        return replace(self, **changes)


PRIORS: dict[str, Prior] = {f.name: f.metadata["prior"] for f in fields(Constants)}
NAMES = tuple(PRIORS)
MEMORY_NAMES = ("state_share", "activation_share", "buffer_share")


def priors_of(cluster: Cluster) -> dict[str, Prior]:
    """A probe's measurement replaces the plausible value, with its own scatter where that is larger and nothing was
    learned since. Where only the device's best GEMM was measured, that is the better guess of its efficiency."""
    scatter = {} if cluster.constants else cluster.spreads
    probed = {
        name: replace(PRIORS[name], value=value, spread=max(PRIORS[name].spread, scatter.get(name, 0.0)))
        for name, value in cluster.probed.items()
        if name in PRIORS
    }
    return {**_plausible(cluster), **probed}


def _plausible(cluster: Cluster) -> dict[str, Prior]:
    device = cluster.device
    measured = [device.matmul_tflops[name] / device.peak_tflops[name] for name in device.matmul_tflops]
    if measured:
        return {**PRIORS, "gemm_efficiency": replace(PRIORS["gemm_efficiency"], value=max(measured))}
    spread = 0.15 if device.is_gpu else 0.6  # nobody knows what a CPU's library reaches
    return {**PRIORS, "gemm_efficiency": replace(PRIORS["gemm_efficiency"], spread=spread)}


def constants_of(cluster: Cluster) -> Constants:
    """What was learned for this cluster, else what was probed, else the priors."""
    priors = priors_of(cluster)
    return Constants(**{name: cluster.constants.get(name, priors[name].value) for name in NAMES})


def spreads_of(cluster: Cluster) -> dict[str, float]:
    """How sure each is: what the fit left open, else the prior's spread."""
    priors = priors_of(cluster)
    return {name: cluster.spreads.get(name, priors[name].spread) for name in NAMES}
