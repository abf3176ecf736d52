"""A CPU machine of known size in the place of the one the tests run on."""

from trimaran.spec import Cluster, Device, Link

LINK = Link(name="shared memory", gb_per_s=2.0, latency_us=50.0)


def two_cores() -> Cluster:
    """What `here` would find on two cores with 16 GiB."""
    device = Device(
        name="cpu-x86_64", peak_tflops={"fp32": 0.1, "bf16": 0.1}, memory_gib=8.0, memory_gb_per_s=10.0, units=1
    )
    return Cluster(name="here", device=device, devices_per_node=2, inside=LINK, between=LINK, context_gib=0.3)
