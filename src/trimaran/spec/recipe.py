"""Recipe: how the weights are moved. Adam's own numbers; which Adam it is, is the Job's `optimizer`."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from trimaran.spec.noun import Noun

Decay = Annotated[float, Field(ge=0, lt=1)]


class Recipe(Noun):
    """The defaults are GPT-3's (arXiv 2005.14165, appendix B), the learning rate that of its 350M model (table 2.1)."""

    learning_rate: PositiveFloat = 3e-4
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="How much of both moments a step keeps.")
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip: PositiveFloat | None = Field(1.0, description="Largest norm of the whole gradient; None: not clipped.")
