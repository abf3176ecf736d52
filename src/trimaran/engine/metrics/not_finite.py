"""What a run that stopped at a loss of NaN leaves behind: the batch, and which tensors are not finite.

Written by every rank, before anything was updated, so the step can be done again from the checkpoint before it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimaran.engine.loop.batches import micro_batches
from trimaran.engine.loop.evaluation import forward
from trimaran.engine.trainer import Step, Trainer


def leave_evidence(folder: Path, trainer: Trainer, batch: dict[str, Tensor], iteration: int, step: Step) -> None:
    """Of this rank. Does the forward passes again to see where the first bad value comes from."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = trainer.world.rank
    found = {
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
    (folder / f"rank-{rank:05d}.json").write_text(json.dumps(found, indent=1))


def summary(tensor: Tensor) -> dict[str, Any]:
    """Norm and largest magnitude of the finite values, and how many are not."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu()  # a GPU may be full
    finite = local[local.isfinite()].double()
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return {"norm": float(finite.norm()), "largest": largest, "not_finite": local.numel() - finite.numel()}


def first_not_finite(trainer: Trainer, batch: dict[str, Tensor]) -> str | None:
    """The first part of this rank's stages, in the order of computing, whose output is not finite."""
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(output.isfinite().all()):
            found.append(name)

    whole = batch | {"token_weights": trainer.shared_out(batch["token_weights"])}
    # Layers that are compiled cannot be looked into.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), watched(trainer.weights.modules, look):
        for micro_batch in micro_batches(whole, trainer.job.layout.micro_batch):
            forward(trainer, micro_batch)
    return found[0] if found else None


@contextmanager
def watched(stages: list[Any], look: Callable[[str, Any], None]) -> Iterator[None]:
    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _module, _given, output: look(name, output)

    hooks = [
        module.register_forward_hook(hook(name or "loss")) for stage in stages for name, module in stage.named_modules()
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()
