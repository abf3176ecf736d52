"""Device, Link and Cluster: what the hardware is. Every constant names its source."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from trimaran.spec.base import Spec

Precision = Literal["fp32", "fp16", "bf16", "fp8"]
GPU_UNITS = 64  # the fewest SMs of a GPU; Fugaku's A64FX has 48 cores, and a CPU that is detected is named cpu-*


class Device(Spec):
    name: str
    peak_tflops: dict[Precision, PositiveFloat] = Field(
        description="Dense peak per dtype; a dtype that is absent cannot be used."
    )
    memory_gib: PositiveFloat
    memory_gb_per_s: PositiveFloat = Field(description="Memory bandwidth by specification, 10^9 bytes per second.")
    units: PositiveInt = Field(description="Streaming multiprocessors, compute units or cores: a wave of a GEMM.")
    matmul_tflops: dict[Precision, PositiveFloat] = Field(
        default_factory=dict, description="Throughput of the best GEMM measured, where known."
    )
    power_watts: PositiveFloat | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        """False: its units are CPU cores, so no tile or wave quantization applies."""
        return self.units >= GPU_UNITS and not self.name.startswith("cpu")


class Link(Spec):
    name: str
    gb_per_s: PositiveFloat = Field(
        description="Bus bandwidth of a large all-reduce, 10^9 bytes/s: per device inside a node, per node between."
    )
    latency_us: NonNegativeFloat = Field(description="Time of the smallest message, microseconds.")
    source: str = ""


class Condition(Spec):
    """A recorded state of a cluster, such as a fault that was repaired: measurements until then are slower."""

    name: str
    until: str = Field(description="Last date it held, as printed in the tables.")
    slowdown: PositiveFloat
    source: str = ""


class Cluster(Spec):
    name: str = "unnamed"
    device: Device
    devices_per_node: PositiveInt
    nodes: PositiveInt = 1
    cores: PositiveInt | None = Field(
        None, description="Cores of a node whose devices are processes: shared by them, and free while one waits."
    )
    inside: Link
    between: Link
    context_gib: NonNegativeFloat = Field(description="Memory of a device lost to driver context and libraries.")
    communicator_gib: NonNegativeFloat | None = Field(
        None, description="Added to it by the communicators of several devices; None: already part of context_gib."
    )
    slack: float = Field(0.06, ge=0, lt=1, description="Share of the allocator's memory lost to fragmentation.")
    probed: dict[str, float] = Field(
        default_factory=dict, description="Constants measured by `trimaran probe`: the starting point of `learn`."
    )
    constants: dict[str, float] = Field(default_factory=dict, description="Calibrated by `trimaran learn`.")
    spreads: dict[str, float] = Field(
        default_factory=dict, description="Uncertainty of each constant: standard deviation of its logarithm."
    )
    residual: float | None = Field(
        None, ge=0, description="Standard deviation of log time on held-out tables; None: nothing measured."
    )
    conditions: tuple[Condition, ...] = Field((), description="Recorded states of the machine that changed its speed.")
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node
