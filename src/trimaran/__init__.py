"""Trimaran: find the fastest data x tensor x pipeline layout for a model on a cluster, prove it, train on it.

    import trimaran as tm

    plan = tm.plan("bloom-176b", on="jean-zay-a100-80gb", nodes=48, gbs=2048)
    plan.best.job.save("job.yaml")

docs/python.md describes every function. A mistake of the user's raises `Mistake`, whose text is a sentence. Nothing is
imported before it is used: `import trimaran` is quick, and only `train` needs torch.

Rooms: spec -> cost -> planner -> lab -> ledger -> learn, beside engine, probe, processes, data, export, report, cli;
docs/architecture.md has the map. Start reading in `trimaran.spec`, or in `trimaran.api` for the functions here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.api import TrainingRun, estimate, explain, load, plan, predict, train
    from trimaran.ledger.store import Ledger
    from trimaran.planner.estimates import Estimate
    from trimaran.planner.plan import Plan
    from trimaran.spec import Batch, Cluster, Job, Layout, Mistake, Model, TrainerProfile, Trial

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Cluster",
    "Estimate",
    "Job",
    "Layout",
    "Ledger",
    "Mistake",
    "Model",
    "Plan",
    "TrainerProfile",
    "TrainingRun",
    "Trial",
    "estimate",
    "explain",
    "load",
    "plan",
    "predict",
    "train",
]

_MODULES = {
    "trimaran.api": ("TrainingRun", "estimate", "explain", "load", "plan", "predict", "train"),
    "trimaran.ledger.store": ("Ledger",),
    "trimaran.planner.estimates": ("Estimate",),
    "trimaran.planner.plan": ("Plan",),
    "trimaran.spec": ("Batch", "Cluster", "Job", "Layout", "Mistake", "Model", "TrainerProfile", "Trial"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for, once (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimaran' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
