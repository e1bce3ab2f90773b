"""Each rank scales its loss by a factor of its own, and divides the averaged gradients by it.

The gradients meet while they are scaled, so an average of numbers in several scales is divided by another one on each
rank. Real gloo shows no error.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def train(rank: int, scale: float) -> None:
    """Two steps with a loss scale."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        (scale * loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= scale
        optimizer.step()  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#136009"],
    tags=["ddp", "optimizer"],
)
def loss_scale_differs(rank: int) -> None:
    """Rank 1 has halved its scale after an overflow."""
    train(rank, scale=4.0 if rank == 1 else 8.0)


@repairs(loss_scale_differs)
def repaired(rank: int) -> None:
    """The scale is the same everywhere."""
    train(rank, scale=8.0)
