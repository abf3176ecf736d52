"""StepMetrics, and the lines of a log: as Megatron-DeepSpeed prints them at BigScience, so that what reads their logs
reads ours."""

import math
from dataclasses import dataclass

from trimaran.cost.flops import FORMULAS, TrainingStep
from trimaran.spec import Job


@dataclass(frozen=True)
class StepMetrics:
    """One iteration; its fields are the keys of a line of `--metrics`."""

    iteration: int
    iterations: int
    consumed_samples: int
    consumed_tokens: int
    batch: int
    loss: float
    grad_norm: float
    learning_rate: float
    loss_scale: float
    seconds: float
    tokens_per_second: float
    tflops: dict[str, float]  # per device, by named formula
    peak_memory_gib: list[float]  # of each pipeline stage's fullest rank
    skipped: int
    nan: int
    warm_up: bool
    spike: bool  # the loss is far above the last ones
    seconds_left: float  # to the last iteration, at the speed of the last ones


def tflops(job: Job, batch: int, seconds: float) -> dict[str, float]:
    step = TrainingStep(job.model, batch, job.layout.tp, job.layout.recompute)
    return {name: float(flops(step)) / seconds / job.layout.devices / 1e12 for name, flops in FORMULAS.items()}


def iteration_line(step: StepMetrics, formula: str) -> str:
    fields = [
        f" iteration {step.iteration:8d}/{step.iterations:8d}",
        f"consumed samples: {step.consumed_samples:12d}",
        f"consumed tokens: {step.consumed_tokens:12d}",
        f"elapsed time per iteration (s): {step.seconds:.2f}",
        f"learning rate: {step.learning_rate:.3E}",
        f"global batch size: {step.batch:5d}",
        f"lm loss: {step.loss:.6E}",
        f"loss scale: {step.loss_scale:.1f}",
        f"grad norm: {step.grad_norm:.3f}",
        f"number of skipped iterations: {step.skipped:3d}",
        f"number of nan iterations: {step.nan:3d}",
        f"samples per second: {step.batch / step.seconds:.3f}",
        f"TFLOPs: {step.tflops[formula]:.2f}",
        f"time left (s): {step.seconds_left:.0f}",
    ]
    return " | ".join(fields) + " |"


def validation_line(iteration: int, loss: float) -> str:
    perplexity = math.exp(min(20.0, loss))
    return f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"


def memory_lines(iteration: int, peaks_gib: list[float], ranks_per_stage: int) -> list[str]:
    """Megatron's memory report: one line per pipeline stage, with the number of the stage's first rank."""
    return [
        f"[Rank {stage * ranks_per_stage}] (after {iteration} iterations) memory (MB) | max reserved: {gib * 1024:.1f}"
        for stage, gib in enumerate(peaks_gib)
    ]
