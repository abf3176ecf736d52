"""Measured: what a probe saw, as plain numbers. Seconds are of one rank while all the others are as busy."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from trimaran.spec.base import Spec
from trimaran.spec.cluster import Precision

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "send"]


class Product(Spec):
    """A matrix product: rows x inner by inner x columns, as a linear layer does it."""

    what: str  # 'square', 'sweep', or the model's product and tensor ranks, such as 'qkv tp 2'
    precision: Precision
    rows: PositiveInt
    columns: PositiveInt
    inner: PositiveInt
    seconds: PositiveFloat

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.inner

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12


class Attention(Spec):
    """Causal attention of `batch` sequences; the backward pass is what both take less the forward pass."""

    batch: PositiveInt
    heads: PositiveInt
    seq: PositiveInt
    head_dim: PositiveInt
    forward_seconds: PositiveFloat
    both_seconds: PositiveFloat

    @property
    def forward_flops(self) -> float:
        """Scores and values of the half that the causal mask leaves."""
        return 2.0 * self.batch * self.heads * self.seq**2 * self.head_dim


class Traffic(Spec):
    """Memory traffic of one rank."""

    copy_gb_per_s: PositiveFloat  # read and written bytes of y = x
    triad_gb_per_s: PositiveFloat  # of z = x + s y
    tokens: PositiveInt  # of the elementwise part of a layer: norms, residual sums, activation
    hidden: PositiveInt
    elementwise_seconds: PositiveFloat  # its forward and backward pass


class Launches(Spec):
    kernel_seconds: PositiveFloat  # of a matrix product too small to matter
    layer_seconds: PositiveFloat  # of the forward pass of a layer too small to matter


class Collective(Spec):
    """One message size. `bytes` is the whole buffer, as nccl-tests count it; `at_once` groups were at work together."""

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


class Host(Spec):
    """What the operating system and the driver say. No names, no addresses."""

    cpu: str
    cores: PositiveInt  # that a process may use
    numa_nodes: PositiveInt  # on which these cores are
    memory_gib: PositiveFloat
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    torch: str
    network_gbit_per_s: dict[str, PositiveFloat]


class Measured(Spec):
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
    precision: Precision  # of the model's products
    host: Host
    products: tuple[Product, ...]
    attention: tuple[Attention, ...]
    traffic: Traffic
    launches: Launches
    collectives: tuple[Collective, ...]
    context_gib: NonNegativeFloat | None = None  # of a GPU: what no tensor gets, with all libraries in use
    sustained_tflops: PositiveFloat | None = None  # of a GPU: products without a pause, at its power limit
    left_out: NonNegativeInt = 0  # measurements for which the time was not enough

    def best_tflops(self, precision: Precision) -> float | None:
        return max((product.tflops for product in self.products if product.precision == precision), default=None)

    def of_kind(self, kind: CollectiveKind, where: str) -> list[Collective]:
        """Smallest message first, the largest group last."""
        found = [c for c in self.collectives if (c.kind, c.where) == (kind, where)]
        return sorted(found, key=lambda c: (c.ranks, c.bytes))
