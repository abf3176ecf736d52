"""spec: what is asked and measured: Model, Cluster, TrainerProfile, Layout, Batch, Recipe, Data, Job; Trial; Sweep.

May import: nothing of ours.
Start reading: job.py, then rules.py (what makes a Job invalid) and nearest.py (the nearest valid one).
files.py reads Job files, settings.py applies `--set layout.tp=2`, both through documents.py, which limits what is read.
bounds.py has the largest value of every count and quantity.
"""

from trimaran.spec.batch import Batch, Ramp
from trimaran.spec.cluster import Cluster, Device, Link
from trimaran.spec.data import Data
from trimaran.spec.job import Job, Saving, Validation
from trimaran.spec.layout import Layout, stage_layers
from trimaran.spec.mistake import Mistake
from trimaran.spec.model import Model
from trimaran.spec.recipe import LossScale, Recipe
from trimaran.spec.setup import Setup
from trimaran.spec.sweep import Sweep
from trimaran.spec.trainer import TrainerProfile
from trimaran.spec.trial import Outcome, Source, Trial

__all__ = [
    "Batch",
    "Cluster",
    "Data",
    "Device",
    "Job",
    "Layout",
    "Link",
    "LossScale",
    "Mistake",
    "Model",
    "Outcome",
    "Ramp",
    "Recipe",
    "Saving",
    "Setup",
    "Source",
    "Sweep",
    "TrainerProfile",
    "Trial",
    "Validation",
    "stage_layers",
]
