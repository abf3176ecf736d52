"""What a run that stopped at a loss of NaN writes: the batch, and which tensors are not finite.

By every rank, before anything was updated, so that the step can be repeated from the checkpoint before it.
"""

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimaran.engine.loop.batches import micro_batches
from trimaran.engine.loop.evaluation import forward
from trimaran.engine.trainer import StepResult, Trainer


def report_not_finite(trainer: Trainer, batch: dict[str, Tensor], iteration: int, step: StepResult) -> None:
    """Files from every rank, a sentence from the first."""
    saving = trainer.job.saving.folder
    folder = Path(saving or ".") / f"not-finite-{iteration:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    write_evidence(folder, trainer, batch, iteration, step)
    if trainer.world.rank == 0:
        saved = f"; the checkpoint before it is in {saving}" if saving else ""
        print(
            f"trimaran: the loss of iteration {iteration} is {float(step.loss):.4g} and its gradient norm"
            f" {float(step.grad_norm):.4g}: stopped, no weights were updated by it{saved}; the batch, and which tensors"
            f" are not finite, are in {folder}.",
            file=sys.stderr,
        )


def write_evidence(folder: Path, trainer: Trainer, batch: dict[str, Tensor], iteration: int, step: StepResult) -> None:
    """Of this rank. Repeats the forward passes to see where the first value that is not finite comes from."""
    rank = trainer.world.rank
    evidence = {
        "iteration": iteration,
        "rank": rank,
        "loss": str(float(step.loss)),
        "grad_norm": str(float(step.grad_norm)),
        "loss_scale": step.loss_scale,
        "first_not_finite": first_not_finite(trainer, batch),
        "tensors": {
            master.tensor.name: {"weight": summary(master.value), "gradient": summary(master.gradient)}
            for master in trainer.weights.masters
        },
    }
    arrays: dict[str, Any] = {name: part.cpu().numpy() for name, part in batch.items()}
    np.savez(folder / f"rank-{rank:05d}-batch.npz", **arrays)
    (folder / f"rank-{rank:05d}.json").write_text(json.dumps(evidence, indent=1))


def summary(tensor: Tensor) -> dict[str, Any]:
    """Norm and largest magnitude of the finite values, and how many are not."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu()  # a GPU may be full
    finite = local[local.isfinite()].double()
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return {"norm": float(finite.norm()), "largest": largest, "not_finite": local.numel() - finite.numel()}


def first_not_finite(trainer: Trainer, batch: dict[str, Tensor]) -> str | None:
    """The first module of this rank's stages, in the order of execution, whose output is not finite."""
    names: list[str] = []

    def check(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(output.isfinite().all()):
            names.append(name)

    whole = batch | {"token_weights": trainer.normalize_token_weights(batch["token_weights"])}
    with ExitStack() as hooks:
        for stage in trainer.weights.modules:
            for name, module in stage.named_modules():
                hooks.enter_context(module.register_forward_hook(partial(check, name or "loss")))
        # Forward hooks do not run inside compiled layers.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for micro_batch in micro_batches(whole, trainer.job.layout.micro_batch):
                forward(trainer, micro_batch)
    return names[0] if names else None
