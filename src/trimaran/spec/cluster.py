"""Device, Link and Cluster: what the hardware is. Every constant names its source."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import MOST_DEVICES, Devices, Quantity, QuantityOrZero, Spread

HERE = "here"  # names the machine this runs on, which is detected instead of read from a preset
Precision = Literal["fp32", "fp16", "bf16", "fp8"]
GPU_UNITS = 64  # the fewest SMs of a GPU; Fugaku's A64FX has 48 cores, and a CPU that is detected is named cpu-*


class Device(Spec):
    name: str
    peak_tflops: dict[Precision, Quantity] = Field(
        min_length=1, description="Dense peak per dtype; a dtype that is absent cannot be used."
    )
    memory_gib: Quantity
    memory_gb_per_s: Quantity = Field(description="Memory bandwidth by specification, 10^9 bytes per second.")
    units: Devices = Field(description="Streaming multiprocessors, compute units or cores: a wave of a GEMM.")
    matmul_tflops: dict[Precision, Quantity] = Field(
        default_factory=dict, description="Throughput of the best GEMM measured, where known."
    )
    power_watts: Quantity | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        """False: its units are CPU cores, so no tile or wave quantization applies."""
        return self.units >= GPU_UNITS and not self.name.startswith("cpu")


class Link(Spec):
    name: str
    gb_per_s: Quantity = Field(
        description="Bus bandwidth of a large all-reduce, 10^9 bytes/s: per device inside a node, per node between."
    )
    latency_us: QuantityOrZero = Field(description="Time of the smallest message, microseconds.")
    source: str = ""


class Condition(Spec):
    """A recorded state of a cluster, such as a fault that was repaired: measurements until then are slower."""

    name: str
    until: str = Field(description="Last date it held, as printed in the tables; empty: it still holds.")
    slowdown: Quantity
    source: str = ""


class Cluster(Spec):
    name: str = "unnamed"
    device: Device
    devices_per_node: Devices
    nodes: Devices = 1
    cores: Devices | None = Field(
        None, description="Cores of a node whose devices are processes: shared by them, and free while one waits."
    )
    inside: Link
    between: Link
    context_gib: QuantityOrZero = Field(description="Memory of a device lost to driver context and libraries.")
    communicator_gib: QuantityOrZero | None = Field(
        None, description="Added to it by the communicators of several devices; None: already part of context_gib."
    )
    slack: float = Field(0.06, ge=0, lt=1, description="Share of the allocator's memory lost to fragmentation.")
    probed: dict[str, Quantity] = Field(
        default_factory=dict, description="Constants measured by `trimaran probe`: the starting point of `learn`."
    )
    constants: dict[str, Quantity] = Field(default_factory=dict, description="Calibrated by `trimaran learn`.")
    spreads: dict[str, Spread] = Field(
        default_factory=dict, description="Uncertainty of each constant: standard deviation of its logarithm."
    )
    residual: Spread | None = Field(
        None, description="Standard deviation of log time on held-out tables; None: nothing measured."
    )
    conditions: tuple[Condition, ...] = Field((), description="Recorded states of the machine that changed its speed.")
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if self.devices > MOST_DEVICES:
            raise ValueError(
                f"{self.nodes:,} nodes of {self.devices_per_node:,} devices are {self.devices:,} devices, but no"
                f" machine has more than {MOST_DEVICES:,}; the nearest that works: nodes"
                f" {MOST_DEVICES // self.devices_per_node:,}."
            )
        return self

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def is_local_cpu(self) -> bool:
        """Whether it is a machine without GPUs detected as `here`: its devices are processes, as many as asked for."""
        return self.name == HERE and self.device.name.startswith("cpu-")

    def with_processes(self, processes: int) -> Self:
        """A CPU machine with another number of processes, fewer or more than its cores: they share its memory and,
        where they outnumber the cores, its speed."""
        if processes == self.devices_per_node:
            return self
        before, after = (max(1.0, count / (self.cores or count)) for count in (self.devices_per_node, processes))
        faster, device = before / after, self.device
        divided = "operating system or its limit for this process, divided by processes"
        shared = device.replace(
            memory_gib=device.memory_gib * self.devices_per_node / processes,
            peak_tflops={name: value * faster for name, value in device.peak_tflops.items()},
            matmul_tflops={name: value * faster for name, value in device.matmul_tflops.items()},
            memory_gb_per_s=device.memory_gb_per_s * faster,
            sources={**device.sources, "memory_gib": divided},
        )
        sources = {**self.sources, "devices_per_node": "processes asked for; they share the cores of this machine"}
        return self.replace(devices_per_node=processes, device=shared.model_dump(), sources=sources)
