"""Arguments that several benchmarks share. A bad one ends with a sentence and exit code 2, as with argparse."""

import argparse
from collections.abc import Sequence

from trimaran.spec import Job, Mistake
from trimaran.spec.files import load_job
from trimaran.spec.settings import apply_settings


def job_argument(parser: argparse.ArgumentParser, name: str, settings: Sequence[str]) -> Job:
    """The job of a file or a preset, with `--set` applied."""
    try:
        return apply_settings(load_job(name), settings)
    except Mistake as mistake:
        parser.error(str(mistake))


def require_gpu(parser: argparse.ArgumentParser) -> None:
    import torch

    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU, and PyTorch finds none here; benchmarks/engine_cpu.py runs on a CPU.")
