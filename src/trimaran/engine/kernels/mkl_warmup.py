"""On a CPU the first call of a function by several threads at once may give one thread's numbers to three digits only:
MKL chooses its kernel at the first call, and not safely (PyTorch's issue 188792, until MKL 2025). Seen here as the
first loss of a process, 2.4e-6 too high in four of 450. So each such function is called for one number first."""

import torch

FUNCTIONS = (torch.exp, torch.log, torch.sqrt, torch.sin, torch.cos)  # that the engine calls for whole tensors


def settle() -> None:
    for dtype in (torch.float32, torch.float64):
        for function in FUNCTIONS:
            function(torch.ones(1, dtype=dtype))
