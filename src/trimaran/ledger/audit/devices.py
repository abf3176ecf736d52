"""What is known of a device by its name: its memory and its peak, from the cluster presets."""

from functools import cache

from trimaran.spec import Device, Setup, presets


@cache
def known_devices() -> dict[str, Device]:
    clusters = [presets.cluster(name) for name in presets.names("clusters") if name != presets.HERE]
    return {cluster.device.name: cluster.device for cluster in clusters}


def peak_tflops(setup: Setup) -> float | None:
    """The most the device can do in this precision; where that is unknown, in its fastest 16- or 32-bit format."""
    device = known_devices().get(setup.device or "")
    if device is None:
        return None
    if setup.precision in device.peak_tflops:
        return device.peak_tflops[setup.precision]
    return max(peak for name, peak in device.peak_tflops.items() if name != "fp8")


def capacity_gib(setup: Setup) -> float | None:
    device = known_devices().get(setup.device or "")
    return device.memory_gib if device else None
