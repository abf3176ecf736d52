"""Saving and Validation: what a run does besides training, and how often."""

from pydantic import Field, PositiveFloat, PositiveInt

from trimaran.spec.base import Spec


class Saving(Spec):
    """Checkpoints. One is also made when the run ends or is told to stop; the newest complete one is gone on from."""

    folder: str | None = Field(None, description="Where they go; None: none are made.")
    every: PositiveInt | None = Field(None, description="Iterations between two.")
    minutes: PositiveFloat | None = Field(None, description="Minutes between two.")
    keep: PositiveInt = Field(2, description="How many of the newest are kept.")
    asynchronous: bool = Field(False, description="Train on while one is written; takes a copy in host memory.")


class Validation(Spec):
    """The loss on the data that is kept from training."""

    every: PositiveInt | None = Field(None, description="Iterations between two; None: never.")
    samples: PositiveInt = Field(64, description="How many, always the same.")
