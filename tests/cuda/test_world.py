"""How a process configures its GPU's allocator."""

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
ALLOCATE = """
import torch
from trimaran.engine.parallel.world import select_device
kept = torch.empty(2**27, device=select_device(0, cpu=False))
print(torch.cuda.memory_reserved() / 2**20)
"""


# 512 MiB are 43 pages of 12 MiB, 26 of 20, or one segment.
@pytest.mark.parametrize(
    ("named", "reserved_mib"),
    [
        ({}, 516),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, 520),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, 512),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, 512),
    ],
    ids=str,
)
def test_memory_is_mapped_in_pages_of_12_mib_unless_the_user_says_otherwise(
    named: dict[str, str], reserved_mib: float
) -> None:
    others = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
    said = subprocess.run(
        [sys.executable, "-c", ALLOCATE], env=others | named, capture_output=True, text=True, check=True
    )
    assert float(said.stdout) == reserved_mib
