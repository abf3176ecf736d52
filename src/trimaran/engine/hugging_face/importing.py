"""A folder of `transformers` becomes a checkpoint that has seen no step, and a job that goes on from it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from math import prod
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import yaml
from torch import Size, Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from trimaran.data.source import check_data
from trimaran.data.tokenizer import TOKENIZER_FILE
from trimaran.engine.checkpoint.atomic_folder import appearing, check_free
from trimaran.engine.checkpoint.checkpointer import STATE
from trimaran.engine.checkpoint.position import Position
from trimaran.engine.checkpoint.reader import alone, whole_shapes
from trimaran.engine.hugging_face.folder import Folder
from trimaran.engine.optimizer.adam import MOMENTS
from trimaran.spec import Job, presets
from trimaran.spec.files import load_job

JOB = "job.yaml"
BATCH = 8
STEPS = 100

Tell = Callable[[int, int], None]  # bytes done, of how many


def import_(source: Path, out: Path, data: str | None, tell: Tell) -> Job:
    folder = Folder(source)
    check_free(out)
    with appearing(out) as partial:
        (partial / JOB).write_text(job_text(folder, out.resolve(), data), "utf-8")
        job = load_job(partial / JOB)
        check_data(job)
        step = partial / "step-00000000"
        step.mkdir()
        state = {"position": asdict(Position()), "job": job.model_dump(mode="json")}
        (step / STATE).write_text(json.dumps(state, indent=1))
        save(folder, step, tell)
        if (source / TOKENIZER_FILE).is_file():
            shutil.copyfile(source / TOKENIZER_FILE, partial / TOKENIZER_FILE)
    return job


def job_text(folder: Folder, out: Path, data: str | None) -> str:
    """Every GPU of this machine a replica, or one process where there is none. Rates are those of a fine-tuning."""
    machine = presets.cluster("here")
    on_cpu = machine.is_local_cpu
    devices = 1 if on_cpu else machine.devices_per_node
    values = {
        "name": folder.model.name,
        "model": {**folder.model.to_dict(), "source": f"imported from {folder.family.name} in Hugging Face's format"},
        "cluster": {"preset": "here", "devices_per_node": devices},
        "trainer": "trimaran",
        "layout": {"dp": devices, "zero": 1 if devices > 1 else 0, "micro_batch": 1},
        "batch": {"size": BATCH * devices},
        "precision": "fp32" if on_cpu else "bf16",
        "optimizer": "adam" if on_cpu else "fused-adam",
        "recipe": {"learning_rate": 2e-5, "schedule": "cosine", "warmup_samples": BATCH * devices * STEPS // 20},
        "data": {"source": str(Path(data).resolve()) if data else "synthetic"},
        "saving": {"folder": str(out)},
        "steps": STEPS,
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def save(folder: Folder, step: Path, tell: Tell) -> None:
    """A file for each tensor: PyTorch keeps all that goes into one file in memory until it is written."""
    writer = dcp.FileSystemWriter(step, single_file_per_rank=False, sync_files=False)
    with alone():
        dcp.save({}, storage_writer=writer, planner=SaveRead(folder, tell), no_dist=True)


class SaveRead(dcp.DefaultSavePlanner):
    """Weights are read when they are about to be written, so that they are never all in memory; moments are zero."""

    def __init__(self, folder: Folder, tell: Tell) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.folder, self.tell, self.done = folder, tell, 0
        self.shapes = whole_shapes(folder.model)
        self.total = 4 * sum(map(prod, self.shapes.values())) * (1 + len(MOMENTS))

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(
            [_item(f"{kind}/{name}", shape) for kind in ("weights", *MOMENTS) for name, shape in self.shapes.items()]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        kind, _, name = index.fqn.partition("/")
        shape = self.shapes[name]
        self.done += 4 * prod(shape)
        self.tell(self.done, self.total)
        return self.folder.read(name) if kind == "weights" else torch.zeros(shape)


def _item(name: str, shape: tuple[int, ...]) -> WriteItem:
    chunk = ChunkStorageMetadata(Size([0] * len(shape)), Size(shape))
    whole = TensorWriteData(chunk, TensorProperties(dtype=torch.float32), Size(shape))
    return WriteItem(index=MetadataIndex(name, chunk.offsets), type=WriteItemType.SHARD, tensor_data=whole)
