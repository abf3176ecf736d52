"""Measured trials as the cost model takes them: cluster, trainer and Job of each, and which of them can calibrate."""

from trimaran.cost.setups import job_of_setup, predictable
from trimaran.ledger.audit import corrected
from trimaran.ledger.reading import Reading
from trimaran.spec import Cluster, Job, Mistake, TrainerProfile, Trial, presets
from trimaran.spec.rules import problems

# Frameworks as they were at the time of the published tables.
TRAINERS = {"megatron-deepspeed": "megatron-deepspeed-2022", "megatron-lm": "megatron-lm-2021"}
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
        raise Mistake("A row names no device, so its cluster is unknown; give --cluster.")
    name = BY_FRAMEWORK.get((device, framework or ""), USUAL.get(device))
    if name is None:
        devices = {n: presets.cluster(n).device.name for n in presets.names("clusters") if n != presets.HERE}
        name = next((n for n in devices if devices[n] == device), None)
        if name is None:
            known = ", ".join(sorted(set(devices.values())))
            raise Mistake(f"No cluster preset has the device {device!r}, only {known}; give --cluster.")
    return presets.cluster(name)


def trainer_of(trial: Trial, otherwise: str = "trimaran") -> TrainerProfile:
    """The preset that describes the trial's framework, or the other where it names none."""
    framework = trial.setup.framework or otherwise
    return presets.trainer(TRAINERS.get(framework, framework))


def job_of(trial: Trial, cluster: Cluster | None = None, trainer: TrainerProfile | None = None) -> Job:
    """What the cost model predicts: a run's own Job, or what the Setup of a table's row makes.

    On its own cluster with its own trainer unless others are given, which then get the trial's number of nodes."""
    job = trial.job
    if job is None:
        return job_of_setup(trial.setup, cluster or cluster_of(trial), trainer or trainer_of(trial), trial.source.date)
    nodes = {"nodes": job.cluster.nodes, "devices_per_node": job.cluster.devices_per_node}
    there = cluster.model_copy(update=nodes) if cluster else job.cluster
    return job.model_copy(update={"cluster": there, "trainer": trainer or job.trainer})


def predictable_job(trial: Trial) -> Job | None:
    """The same where the row states enough, and its device and framework are known."""
    if trial.job is None and not predictable(trial.setup):
        return None
    try:
        return job_of(trial)
    except Mistake:  # a device or a framework without a preset
        return None


def possible_job(trial: Trial) -> Job | None:
    """The same where no rule forbids the row."""
    job = predictable_job(trial)
    return job if trial.job is not None or (job is not None and not problems(job)) else None


def calibration_trials(reading: Reading, cluster: Cluster | None = None) -> list[Trial]:
    """Trials that state seconds or memory of a predictable setup, on the cluster's device where one is given.

    A row that a correction replaces gives way to the corrected one, and a reprint counts once. Seconds that follow from
    TFLOPs count, unless the environment was changed.
    """
    kept, seen = [], set()
    for trial in corrected(reading).timed():
        setup, outcome = trial.setup, trial.outcome
        if cluster is not None and setup.device != cluster.device.name:
            continue
        if not predictable(setup):
            continue
        identity = (str(setup), outcome.seconds, outcome.tflops, outcome.memory_gib, outcome.status)
        if identity not in seen:
            seen.add(identity)
            kept.append(trial)
    return kept
