"""A module makes a buffer when a branch is first taken, which one rank takes alone: its broadcast of buffers is longer.

All buffers of a size go as one tensor. Real gloo: a process aborts, as it gets more bytes than it expects.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, repairs, scenario


class Counting(torch.nn.Module):
    """A layer that counts what it sees, by kind."""

    def __init__(self, kinds: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(2))
        for kind in kinds:
            self.register_buffer(kind, torch.zeros(7))

    def forward(self, batch: Tensor, kind: str) -> Tensor:
        """Count, with room made where there is none."""
        if not hasattr(self, kind):
            self.register_buffer(kind, torch.zeros(7))
        out: Tensor = self.layer(batch)
        return out


def train(rank: int, model: torch.nn.Module) -> None:
    """Two steps; rank 1 sees another kind."""
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        wrapped(torch.ones(2, 4), "rare" if rank == 1 else "seen").sum().backward()  # found here by torch


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=1),
    under_ddp=CLEAN,
    reports=["NVIDIA/Model-Optimizer#2342", "Tencent/YOLO-Master#154"],
    tags=["ddp", "buffers"],
    min_world_size=3,
)
def buffer_made_on_first_use(rank: int) -> None:
    """Make buffers when they are needed."""
    train(rank, Counting())


@repairs(buffer_made_on_first_use)
def repaired(rank: int) -> None:
    """Make all buffers at the start."""
    train(rank, Counting(("rare",)))
