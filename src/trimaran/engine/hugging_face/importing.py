"""Writes a folder of `transformers` as a checkpoint before its first step, and a job that resumes from it."""

import shutil
from math import prod
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import yaml
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trimaran.data.source import check_data
from trimaran.data.tokenizer import TOKENIZER_FILE
from trimaran.engine.checkpoint.atomic_folder import atomic_folder
from trimaran.engine.checkpoint.folder import TrainState, write_state
from trimaran.engine.checkpoint.reader import full_shapes, single_process
from trimaran.engine.checkpoint.sharded_tensors import Shard, ShardSavePlanner
from trimaran.engine.checkpoint.storage import CheckpointWriter
from trimaran.engine.hugging_face.folder import HfFolder, OnProgress
from trimaran.engine.optimizer.adam import MOMENTS
from trimaran.spec import Job, presets
from trimaran.spec.files import load_job

JOB = "job.yaml"
BATCH = 8
STEPS = 100


def import_(source: Path, out: Path, data: str | None, on_progress: OnProgress) -> Job:
    folder = HfFolder(source)
    with atomic_folder(out) as partial:
        (partial / JOB).write_text(job_text(folder, out.resolve(), data), "utf-8")
        job = load_job(partial / JOB)
        check_data(job)
        step = partial / "step-00000000"
        step.mkdir()
        write_state(step, TrainState(), job)
        # A file for each tensor: DCP keeps everything of a file in memory until it is written.
        writer = CheckpointWriter(step, single_file_per_rank=False, sync_files=False)
        with single_process():
            dcp.save({}, storage_writer=writer, planner=StreamingSavePlanner(folder, on_progress), no_dist=True)
        if (source / TOKENIZER_FILE).is_file():
            shutil.copyfile(source / TOKENIZER_FILE, partial / TOKENIZER_FILE)
    return job


def job_text(folder: HfFolder, out: Path, data: str | None) -> str:
    """One replica on every GPU of this machine, or one process on a CPU. The learning rate is one for fine-tuning."""
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


class StreamingSavePlanner(ShardSavePlanner):
    """Reads each weight when it is about to be written, so that they are never all in memory; moments are zero."""

    def __init__(self, folder: HfFolder, on_progress: OnProgress) -> None:
        self.folder, self.on_progress, self.done = folder, on_progress, 0
        self.shapes = full_shapes(folder.model)
        self.total = 4 * sum(map(prod, self.shapes.values())) * (1 + len(MOMENTS))
        full = {name: Shard(shape, (0,) * len(shape), shape, writes=True) for name, shape in self.shapes.items()}
        super().__init__({f"{kind}/{name}": shard for kind in ("weights", *MOMENTS) for name, shard in full.items()})

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        kind, _, name = index.fqn.partition("/")
        shape = self.shapes[name]
        self.done += 4 * prod(shape)
        self.on_progress(self.done, self.total)
        return self.folder.read(name) if kind == "weights" else torch.zeros(shape)
