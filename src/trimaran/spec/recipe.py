"""Recipe: optimizer hyperparameters and the learning-rate schedule. The Job's `optimizer` says which Adam it is."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import Hyperparameter, QuantityOrZero, Samples, SamplesOrZero, Steps

Decay = Annotated[float, Field(ge=0, lt=1)]


class LossScale(Spec):
    """Dynamic loss scaling of fp16: keeps small gradients from underflow; halved when gradients overflow."""

    initial: Hyperparameter = 2.0**16
    window: Steps = Field(1000, description="Steps without an overflow after which it doubles.")
    hysteresis: Steps = Field(2, description="Overflows before it halves; reset when it doubles.")
    minimum: Hyperparameter = 1.0

    @model_validator(mode="after")
    def _check_minimum(self) -> Self:
        if self.initial < self.minimum:
            raise ValueError(
                f"the loss scale starts at {self.initial:g}, below its minimum {self.minimum:g};"
                f" the nearest that works: initial {self.minimum:g}."
            )
        return self


class Recipe(Spec):
    """The defaults are GPT-3's (arXiv 2005.14165, appendix B), the learning rate that of its 350M model (table 2.1)."""

    learning_rate: Hyperparameter = Field(3e-4, description="The peak, reached after the warm-up.")
    warmup_samples: SamplesOrZero = Field(0, description="Samples over which the learning rate rises from zero.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Decay after the warm-up.")
    decay_samples: Samples | None = Field(
        None, description="Samples until the minimum is reached, warm-up included; None: those of the whole job."
    )
    minimum_learning_rate: QuantityOrZero = Field(0.0, description="The learning rate at the end of the decay.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="Adam's decay rates of the first and second moment.")
    eps: Hyperparameter = 1e-8
    weight_decay: QuantityOrZero = 0.1
    undecayed: tuple[Literal["norms", "biases", "embeddings"], ...] = Field(
        ("norms", "biases"), description="Parameters without weight decay."
    )
    clip: Hyperparameter | None = Field(1.0, description="Gradient clipping by global norm; None: not clipped.")
    loss_scale: LossScale = Field(LossScale(), description="For fp16.")

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.minimum_learning_rate > self.learning_rate:
            raise ValueError(
                f"the minimum learning rate {self.minimum_learning_rate:g} is above the peak,"
                f" {self.learning_rate:g}; the nearest that works: minimum_learning_rate {self.learning_rate:g}."
            )
        if self.decay_samples is not None and self.decay_samples < self.warmup_samples:
            raise ValueError(
                f"the learning-rate decay ends after {self.decay_samples} samples, but the warm-up takes"
                f" {self.warmup_samples}; the nearest that works: decay_samples {self.warmup_samples}."
            )
        return self

    def rate_at(self, samples: int, all_samples: int) -> float:
        """The learning rate of the step that ends after `samples`, in a job of `all_samples`."""
        if samples < self.warmup_samples:
            return self.learning_rate * samples / self.warmup_samples
        end = self.decay_samples or all_samples
        if self.schedule == "constant":
            return self.learning_rate
        done = min(1.0, (samples - self.warmup_samples) / max(1, end - self.warmup_samples))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.minimum_learning_rate + left * (self.learning_rate - self.minimum_learning_rate)
