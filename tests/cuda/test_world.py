"""How a process takes its GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
TAKEN = """
import json, torch
from trimaran.engine.world import device_here
kept = torch.empty(2**27, device=device_here(0, cpu=False))
print(json.dumps([segment["is_expandable"] for segment in torch.cuda.memory_snapshot()]))
"""


@pytest.mark.parametrize(
    ("named", "expandable"),
    [
        ({}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
    ],
    ids=str,
)
def test_memory_is_mapped_in_pages_unless_the_user_says_otherwise(named: dict[str, str], expandable: bool) -> None:
    others = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
    said = subprocess.run([sys.executable, "-c", TAKEN], env=others | named, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [expandable]
