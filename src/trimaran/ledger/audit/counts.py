"""Whole numbers that must agree: devices, batches, layers, memory against the device's."""

from collections.abc import Iterator

from trimaran.ledger.audit.finding import Finding, capacity_gib
from trimaran.ledger.audit.rates import Rate
from trimaran.spec import Trial


def check_devices(trial: Trial, tags: tuple[str, ...]) -> Iterator[Finding]:
    setup = trial.setup
    per_node = setup.devices_per_node
    if setup.nodes and per_node and setup.devices and setup.devices > setup.nodes * per_node:
        message = f"{setup.devices} devices are more than {setup.nodes} nodes of {per_node} have."
        yield Finding.of(trial, "contradictory", "devices", message)
    if not (setup.dp and setup.tp and setup.pp and setup.devices):
        return
    product, model_parallel = setup.dp * setup.tp * setup.pp, setup.tp * setup.pp
    if product == setup.devices:
        return
    message = f"dp {setup.dp} x tp {setup.tp} x pp {setup.pp} = {product}, not the {setup.devices} devices printed"
    if _tflops_agree_with(setup.devices, trial, tags) and setup.devices % model_parallel == 0:
        dp = setup.devices // model_parallel
        message += f". The TFLOPs agree with {setup.devices} devices, of which tp and pp leave dp {dp}."
        yield Finding.of(trial, "impossible", "devices", message, {"dp": dp})
    elif _tflops_agree_with(product, trial, tags):
        corrections = {"devices": product}
        if per_node and product % per_node == 0:
            corrections["nodes"] = product // per_node
        message += f", while the TFLOPs agree with {product}."
        yield Finding.of(trial, "impossible", "devices", message, corrections)
    else:
        yield Finding.of(trial, "contradictory", "devices", f"{message}.")


def _tflops_agree_with(devices: int, trial: Trial, tags: tuple[str, ...]) -> bool:
    """Whether TFLOPs and seconds (or milliseconds) fit a formula with this many devices."""
    rate = Rate.of(trial)
    if rate is None:
        return False
    other = Rate(rate.setup.model_copy(update={"devices": devices}), rate.seconds, rate.tflops)
    return any(other.agrees(other.nearest(tags, seconds)) for seconds in (rate.seconds, rate.seconds / 1000))


def check_batch(trial: Trial, dp: int | None) -> Iterator[Finding]:
    gbs, mbs = trial.setup.gbs, trial.setup.mbs
    if gbs and mbs and dp and gbs % (dp * mbs) and trial.outcome.status == "ok":
        message = f"A global batch of {gbs} is not a multiple of dp {dp} x micro batch {mbs} = {dp * mbs}."
        yield Finding.of(trial, "contradictory", "batch", message)


def check_stages(trial: Trial) -> Iterator[Finding]:
    setup = trial.setup
    if not setup.layers or not setup.pp or setup.layers % setup.pp == 0:
        return
    weighted = (setup.layers + 2) % setup.pp == 0  # embedding and head as layers: BLOOM's 70 on 12
    given = f"{setup.layers} layers on {setup.pp} stages ({setup.layers / setup.pp:.2f} each)"
    ran = trial.outcome.status == "ok"
    if setup.pp > setup.layers + 2 and ran:
        yield Finding.of(trial, "contradictory", "stages", f"{given} leave stages empty.")
    elif not ran:
        yield Finding.of(trial, "suspicious", "stages", f"{given} are uneven, which may be why it did not run.")
    elif not weighted:
        yield Finding.of(trial, "suspicious", "stages", f"{given} are only possible with uneven stages.")


def check_memory(trial: Trial) -> Iterator[Finding]:
    memory, capacity = trial.outcome.memory_gib, capacity_gib(trial.setup)
    if memory and capacity and memory > 1.02 * capacity:
        message = f"{memory:g} GB of memory on a {trial.setup.device}, which has {capacity:g}."
        yield Finding.of(trial, "contradictory", "memory", message)


def check_straggler(trial: Trial) -> Iterator[Finding]:
    if trial.outcome.straggler:
        yield Finding.of(trial, "suspicious", "straggler", trial.outcome.straggler)
