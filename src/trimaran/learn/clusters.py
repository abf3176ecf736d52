"""Which cluster a measured row belongs to, where it does not say: by its device, and by who ran what on it."""

from trimaran.spec import Cluster, Mistake, Trial, presets

# Devices that several presets have: the published rows of each trainer come from one of them.
BY_FRAMEWORK = {("a100-80gb", "megatron-deepspeed"): "jean-zay-a100-80gb"}
USUAL = {"a100-80gb": "selene"}


# How people shorten the names of devices.
ALIASES = {"a100": "a100-80gb", "v100": "v100-32gb", "h100": "h100-80gb", "h200-141gb": "h200", "b200-180gb": "b200"}


def cluster_of(trial: Trial) -> Cluster:
    """The preset with the row's device; nodes and devices per node are the row's own."""
    framework, given = trial.setup.framework, trial.setup.device
    device = ALIASES.get(given.lower().replace("-sxm", ""), given) if given else None
    if device is None:
        raise Mistake("A row names no device, so nothing tells its cluster; give --cluster.")
    name = BY_FRAMEWORK.get((device, framework or ""), USUAL.get(device))
    if name is None:
        having = [
            n for n in presets.names("clusters") if n != presets.HERE and presets.cluster(n).device.name == device
        ]
        if not having:
            known = sorted({presets.cluster(n).device.name for n in presets.names("clusters") if n != presets.HERE})
            raise Mistake(f"No cluster preset has the device {device!r}, only {', '.join(known)}; give --cluster.")
        name = having[0]
    return presets.cluster(name)
