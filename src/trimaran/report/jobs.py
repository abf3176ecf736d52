"""The Job of a measured row, where it says enough: what it leaves out gets the cost model's stated defaults."""

from typing import Any

from trimaran.cost.columns import STATE_BYTES
from trimaran.cost.setups import DEFAULTS, precision_of, predictable
from trimaran.learn.clusters import cluster_of
from trimaran.learn.rows import trainer_name
from trimaran.spec import Job, Mistake, Trial, presets


def job_of(trial: Trial) -> Job | None:
    if trial.job is not None:
        return trial.job
    setup = trial.setup
    if not predictable(setup):
        return None
    replica = (setup.tp or 1) * (setup.pp or 1)
    devices = setup.devices or (setup.dp or 1) * replica
    try:
        cluster = cluster_of(trial)
        per_node = setup.devices_per_node or cluster.devices_per_node
        virtual = setup.virtual_stages or 1
        even = (setup.layers or 0) % ((setup.pp or 1) * virtual) == 0
        values: dict[str, Any] = {
            "name": setup.size_label or "unnamed",
            "model": {
                "name": setup.size_label or "unnamed",
                "layers": setup.layers,
                "hidden": setup.hidden,
                "heads": setup.heads or max(1, (setup.hidden or 0) // 128),
                "kv_heads": setup.kv_heads,
                "ffn_hidden": setup.ffn_hidden,
                "vocab": setup.vocab or DEFAULTS["vocab"],
                "seq_len": setup.seq_len or DEFAULTS["seq_len"],
                "mlp": setup.mlp or "gelu",
            },
            "cluster": {**cluster.model_dump(), "nodes": max(1, devices // per_node), "devices_per_node": per_node},
            "trainer": presets.trainer(trainer_name(trial)).model_dump(),
            "layout": {
                "dp": setup.dp or devices // replica,
                "tp": setup.tp,
                "pp": setup.pp,
                "virtual_stages": virtual,
                "schedule": "interleaved" if virtual > 1 else "1f1b",
                "micro_batch": setup.mbs,
                "zero": setup.zero or 0,
                "recompute": setup.recompute or "none",
                "sequence_parallel": bool(setup.sequence_parallel),
                "split": "even" if even else "weighted",
            },
            "batch": {"size": setup.gbs},
            "precision": precision_of(setup, cluster),
            "optimizer": setup.optimizer if setup.optimizer in STATE_BYTES else "adam",
            "environment": setup.environment,
        }
        return Job.of(values)
    except Mistake:  # of a row that says something impossible, or of a device that no preset has
        return None
