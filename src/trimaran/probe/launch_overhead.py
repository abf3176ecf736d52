"""What starting work costs where the work itself is nothing: a tiny matrix product, a tiny layer."""

import torch
import torch.nn.functional as F

from trimaran.probe.measured import Launches
from trimaran.probe.timing import Stopwatch

SIDE = 16


def launches(watch: Stopwatch) -> Launches:
    device = watch.world.device
    left, right = torch.randn(SIDE, SIDE, device=device), torch.randn(SIDE, SIDE, device=device)
    result = torch.empty(SIDE, SIDE, device=device)
    layer = Layer().to(device)
    inputs = torch.randn(1, 2, SIDE, device=device)
    return Launches(
        kernel_seconds=watch.seconds(lambda: torch.mm(left, right, out=result)),
        layer_seconds=watch.seconds(lambda: layer(inputs)),
    )


class Layer(torch.nn.Module):
    """A transformer layer of one head, with its graph for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(SIDE), torch.nn.LayerNorm(SIDE)
        self.qkv, self.out = torch.nn.Linear(SIDE, 3 * SIDE), torch.nn.Linear(SIDE, SIDE)
        self.up, self.down = torch.nn.Linear(SIDE, 4 * SIDE), torch.nn.Linear(4 * SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unsqueeze(1) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))
