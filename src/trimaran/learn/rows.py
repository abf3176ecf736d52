"""Which trials can teach: corrected where the audit forces it, once each, with enough known to be predicted."""

from trimaran.cost.setups import predictable
from trimaran.ledger.audit import corrected
from trimaran.ledger.reading import Reading
from trimaran.spec import Cluster, Trial

TRAINERS = {"megatron-deepspeed": "megatron-deepspeed-2022", "megatron-lm": "megatron-lm-2021"}


def trainer_name(trial: Trial, otherwise: str = "trimaran") -> str:
    """The trainer preset that describes a trial's framework at the time of the published tables."""
    framework = trial.setup.framework or otherwise
    return TRAINERS.get(framework, framework)


def teaching(reading: Reading, cluster: Cluster | None = None) -> list[Trial]:
    """Of these trials those that tell seconds or memory of a known set-up, on the cluster's device where one is given.

    A row that a correction replaces gives way to the corrected one, a reprint teaches nothing new, and more stages than
    layers are no layout. Seconds that only TFLOPs tell count, unless the environment was tampered with.
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
