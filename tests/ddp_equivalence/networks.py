"""Small networks, in float64 unless the test is about another dtype."""

from __future__ import annotations

from torch import Tensor, nn


def multilayer() -> nn.Module:
    """Six parameters of different sizes."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def with_buffers() -> nn.Module:
    """BatchNorm's running statistics are buffers, one of them an integer."""
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()


def registered_backwards() -> nn.Module:
    """Used in the opposite order to that of registration: gradients come in an order that DDP does not expect."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 2)
            self.first = nn.Linear(4, 5)

        def forward(self, batch: Tensor) -> Tensor:
            return self.last(self.first(batch).tanh())

    return Backwards().double()
