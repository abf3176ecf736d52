"""Which cluster a measured row belongs to, where it does not say: by its device, and by who ran what on it."""

from trimaran.spec import Cluster, Mistake, Trial, presets

# Devices that several presets have: the published rows of each trainer come from one of them.
BY_FRAMEWORK = {
    ("a100-80gb", "megatron-deepspeed"): "jean-zay-a100-80gb",
    ("a100-80gb", "megatron-lm"): "selene",
}


def cluster_of(trial: Trial) -> Cluster:
    """The preset with the row's device; nodes and devices per node are the row's own."""
    device, framework = trial.setup.device, trial.setup.framework
    if device is None:
        raise Mistake("A row names no device, so nothing tells its cluster; give --cluster.")
    name = BY_FRAMEWORK.get((device, framework or ""))
    if name is None:
        having = [
            n for n in presets.names("clusters") if n != presets.HERE and presets.cluster(n).device.name == device
        ]
        if not having:
            known = sorted({presets.cluster(n).device.name for n in presets.names("clusters") if n != presets.HERE})
            raise Mistake(f"No cluster preset has the device {device!r}, only {', '.join(known)}; give --cluster.")
        name = having[0]
    return presets.cluster(name)
