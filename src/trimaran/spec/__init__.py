"""spec: what is being asked? Model, Cluster, Trainer, Layout, Batch, Job; Outcome and Trial for what came of it.

May import: nothing of ours (and never torch).
Start reading: job.py, then rules.py (what makes a Job impossible) and nearest.py (the Job that would work).
"""

from trimaran.spec.batch import Batch, Ramp
from trimaran.spec.cluster import Cluster, Device, Link
from trimaran.spec.job import Job
from trimaran.spec.layout import Layout, stage_layers
from trimaran.spec.mistake import Mistake
from trimaran.spec.model import Model
from trimaran.spec.setup import Setup
from trimaran.spec.trainer import Trainer
from trimaran.spec.trial import Outcome, Source, Trial

__all__ = [
    "Batch",
    "Cluster",
    "Device",
    "Job",
    "Layout",
    "Link",
    "Mistake",
    "Model",
    "Outcome",
    "Ramp",
    "Setup",
    "Source",
    "Trainer",
    "Trial",
    "stage_layers",
]
