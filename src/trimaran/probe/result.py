"""ProbeResult: what a probe measured. Seconds are of one rank while all others do the same."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from trimaran.spec.base import Spec
from trimaran.spec.cluster import Precision

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "send"]


class GemmShape(Spec):
    """rows x inner by inner x columns, as a linear layer computes it."""

    what: str  # 'square', 'sweep', or the model's layer and tensor ranks, such as 'qkv tp 2'
    precision: Precision
    rows: PositiveInt
    columns: PositiveInt
    inner: PositiveInt

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.inner


class GemmTiming(GemmShape):
    seconds: PositiveFloat

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12


class AttentionTiming(Spec):
    """Causal attention over `batch` sequences; both: forward and backward pass."""

    batch: PositiveInt
    heads: PositiveInt
    seq: PositiveInt
    head_dim: PositiveInt
    forward_seconds: PositiveFloat
    both_seconds: PositiveFloat

    @property
    def forward_flops(self) -> float:
        """Scores and values of the half below the causal mask's diagonal."""
        return 2.0 * self.batch * self.heads * self.seq**2 * self.head_dim


class MemoryTraffic(Spec):
    copy_gb_per_s: PositiveFloat  # read and written bytes of y = x
    triad_gb_per_s: PositiveFloat  # of z = x + s y
    tokens: PositiveInt  # of the elementwise part of a layer: norms, residual additions, activation
    hidden: PositiveInt
    elementwise_seconds: PositiveFloat  # its forward and backward pass


class LaunchOverhead(Spec):
    kernel_seconds: PositiveFloat  # a GEMM that takes no longer than its launch
    layer_seconds: PositiveFloat  # the forward pass of such a layer


class CollectiveTiming(Spec):
    """One message size. `bytes` is the whole buffer, as nccl-tests count it; `at_once` groups ran concurrently."""

    kind: CollectiveKind
    where: Literal["inside", "between"]
    ranks: PositiveInt
    at_once: PositiveInt
    bytes: PositiveInt
    seconds: PositiveFloat

    @property
    def algorithm_gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9

    @property
    def bus_gb_per_s(self) -> float:
        """What a ring moves over each link: comparable over kinds and numbers of ranks."""
        return self.algorithm_gb_per_s * bus_factor(self.kind, self.ranks)


def bus_factor(kind: CollectiveKind, ranks: int) -> float:
    if kind == "send":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks


class HostFacts(Spec):
    """From the operating system and the driver. No host names, no addresses."""

    cpu: str
    cores: PositiveInt  # that a process may use
    numa_nodes: PositiveInt  # on which these cores are
    memory_gib: PositiveFloat
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    torch: str
    network_gbit_per_s: dict[str, PositiveFloat]


class ProbeResult(Spec):
    """Its fields are keys of `trimaran probe --json`."""

    command: str
    date: str
    took_seconds: PositiveFloat
    model: str  # whose shapes were measured
    ranks: PositiveInt
    nodes: PositiveInt
    device: Literal["cpu", "cuda"]
    device_name: str
    units: PositiveInt
    device_memory_gib: PositiveFloat | None = None  # of a GPU
    precision: Precision  # of the model's GEMMs
    host: HostFacts
    products: tuple[GemmTiming, ...]  # GEMMs; the key is older than the word
    attention: tuple[AttentionTiming, ...]
    traffic: MemoryTraffic
    launches: LaunchOverhead
    collectives: tuple[CollectiveTiming, ...]
    context_gib: NonNegativeFloat | None = None  # of a GPU: memory outside the allocator, with all libraries in use
    sustained_tflops: PositiveFloat | None = None  # of a GPU: GEMMs back to back, at its power limit
    left_out: NonNegativeInt = 0  # measurements that were skipped for lack of time

    def best_tflops(self, precision: Precision) -> float | None:
        return max((gemm.tflops for gemm in self.products if gemm.precision == precision), default=None)

    def of_kind(self, kind: CollectiveKind, where: str) -> list[CollectiveTiming]:
        """By group size, then by message size."""
        timings = [c for c in self.collectives if (c.kind, c.where) == (kind, where)]
        return sorted(timings, key=lambda c: (c.ranks, c.bytes))
