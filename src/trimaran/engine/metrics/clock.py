"""When something ended on the device. A GPU works behind the host's back, so its own events are asked, and later."""

import time

import torch

Mark = float | torch.cuda.Event


def mark(device: torch.device) -> Mark:
    """The moment when everything given to the device so far is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Mark, second: Mark) -> float:
    """Waits for the second."""
    if isinstance(first, float):
        assert isinstance(second, float)
        return second - first
    assert not isinstance(second, float)
    second.synchronize()
    return float(first.elapsed_time(second)) / 1e3
