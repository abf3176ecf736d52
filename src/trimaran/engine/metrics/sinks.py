"""Where the last rank's records go besides the screen: a file of JSON lines, TensorBoard."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from trimaran.engine.metrics.records import Record


class Outlet(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def record(self, record: Record) -> None: ...

    def validation(self, iteration: int, loss: float) -> None: ...


class JsonLines:
    """One object a line, written at once; what is not finite is null, for JSON has no word for it."""

    def __init__(self, path: Path, goes_on: bool) -> None:
        self.file = path.open("a" if goes_on else "w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def record(self, record: Record) -> None:
        self._write(asdict(record))

    def validation(self, iteration: int, loss: float) -> None:
        self._write({"iteration": iteration, "validation_loss": loss})

    def _write(self, values: dict[str, Any]) -> None:
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        self.file.write(json.dumps(finite) + "\n")
        self.file.flush()


class TensorBoard:
    """Scalars by iteration, under the names that Megatron gives them where it has one."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.writer.close()

    def record(self, record: Record) -> None:
        scalars = {
            "lm-loss-training/lm loss": record.loss,
            "grad-norm/grad-norm": record.grad_norm,
            "learning-rate/learning-rate": record.learning_rate,
            "batch-size/batch-size": record.batch,
            "loss-scale/loss-scale": record.loss_scale,
            "iteration-time/iteration-time": record.seconds,
            "throughput/tokens-per-second": record.tokens_per_second,
            **{f"tflops/{formula}": value for formula, value in record.tflops.items()},
            **{f"peak-memory-gib/stage {stage}": gib for stage, gib in enumerate(record.peak_memory_gib)},
        }
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, record.iteration)

    def validation(self, iteration: int, loss: float) -> None:
        self.writer.add_scalar("lm-loss-validation/lm loss", loss, iteration)
        self.writer.flush()
