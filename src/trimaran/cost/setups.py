"""The one way from a measured Setup to a Job, with the defaults of what a source leaves out."""

from trimaran.cost.columns import STATE_BYTES
from trimaran.spec import Batch, Cluster, Job, Layout, Setup, TrainerProfile
from trimaran.spec.cluster import Precision

# Documented in docs/cost-model.md. Megatron's own defaults where it has them.
DEFAULT_VOCAB, DEFAULT_SEQ_LEN = 51200, 2048
NEEDED = ("layers", "hidden", "gbs")


def missing(setup: Setup) -> list[str]:
    """Fields without which nothing can be predicted."""
    return [name for name in NEEDED if getattr(setup, name) is None]


def predictable(setup: Setup) -> bool:
    """Whether a measured row states its layout, and a possible one: not more stages than layers."""
    known = not missing(setup) and setup.mbs is not None and setup.tp is not None and setup.pp is not None
    return known and (setup.pp or 1) <= (setup.layers or 0)


def job_of_setup(setup: Setup, cluster: Cluster, trainer: TrainerProfile, date: str = "") -> Job:
    """The Job of a row that has the fields in NEEDED, on the cluster as it was on that date.

    What the source leaves out is at its default: no recompute, no ZeRO, no sequence parallelism, micro batch 1, as many
    replicas as the devices hold, a split that is weighted where only that can be made. Rules are not checked, because a
    misprinted row is predicted as it stands: `trimaran.spec.rules.problems` says what is wrong with it.
    """
    layout = _layout(setup)
    return Job.model_validate(
        {
            "name": setup.size_label or "unnamed",
            "model": setup.to_model(DEFAULT_VOCAB, DEFAULT_SEQ_LEN),
            "cluster": _cluster(setup, layout, cluster, date),
            "trainer": trainer,
            "layout": layout,
            "batch": Batch(size=setup.gbs or 1),
            "precision": precision_of(setup, cluster),
            "optimizer": next((name for name in STATE_BYTES if name == setup.optimizer), "adam"),
            "environment": setup.environment,
        },
        context={"trusted": True},
    )


def _layout(setup: Setup) -> Layout:
    tp, pp, virtual = setup.tp or 1, setup.pp or 1, setup.virtual_stages or 1
    devices = setup.devices or (setup.nodes or 0) * (setup.devices_per_node or 0)
    return Layout(
        dp=setup.dp or max(1, devices // (tp * pp)),
        tp=tp,
        pp=pp,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        micro_batch=setup.mbs or 1,
        zero=setup.zero or 0,
        recompute=setup.recompute or "none",
        sequence_parallel=bool(setup.sequence_parallel),
        split="even" if (setup.layers or 1) % (pp * virtual) == 0 else "weighted",
    )


def _cluster(setup: Setup, layout: Layout, cluster: Cluster, date: str) -> Cluster:
    """With the row's own nodes, and the condition that held on the date, if any; dates compare as printed (MM-DD)."""
    per_node = setup.devices_per_node or cluster.devices_per_node
    held = [c.model_copy(update={"until": ""}) for c in cluster.conditions if date and date <= c.until][:1]
    return cluster.model_copy(
        update={
            "nodes": max(1, (setup.devices or layout.devices) // per_node),
            "devices_per_node": per_node,
            "conditions": tuple(held) or cluster.conditions,
        }
    )


def precision_of(setup: Setup, cluster: Cluster) -> Precision:
    """As stated; else bf16, fp16 or, on a CPU, fp32, whichever the device has first."""
    peaks = cluster.device.peak_tflops
    if setup.precision in peaks:
        return setup.precision
    if not cluster.device.is_gpu:
        return "fp32"
    return "bf16" if "bf16" in peaks else "fp16"
