"""What a benchmark is asked for, and what it cannot do: one sentence and exit code 2, as argparse has it."""

import argparse
from collections.abc import Sequence

from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings


def job_asked(parser: argparse.ArgumentParser, name: str, settings: Sequence[str]) -> Job:
    """A file or a preset, with some fields changed."""
    try:
        return apply_settings(load_job(name), settings)
    except Mistake as mistake:
        parser.error(str(mistake))


def need_gpu(parser: argparse.ArgumentParser) -> None:
    import torch

    if not torch.cuda.is_available():
        parser.error("this runs on an NVIDIA GPU, and PyTorch sees none here; benchmarks/engine_cpu.py needs none.")
