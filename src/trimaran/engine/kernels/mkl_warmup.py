"""MKL chooses its kernel for a function at the first call, and not thread-safely (PyTorch's issue 188792, until MKL
2025): a first call by several threads may give one thread's results to three digits only. Seen here as the first loss
of a process, 2.4e-6 too high in four of 450. So each such function is called on a single element first."""

import torch

FUNCTIONS = (torch.exp, torch.log, torch.sqrt, torch.sin, torch.cos)  # that the engine calls on whole tensors


def warm_up_mkl() -> None:
    for dtype in (torch.float32, torch.float64):
        for function in FUNCTIONS:
            function(torch.ones(1, dtype=dtype))
