"""Wrapping does not send rank 0's state, and each rank trains the weights it happened to draw.

`init_sync=False` leaves it to the program that all ranks start with equal state. Real gloo: no error; the replicas keep
the difference they began with.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#142824"],
    tags=["wrapping", "ddp"],
)
def wrapped_without_initial_sync(rank: int) -> None:
    """Save the initial broadcast although the ranks have seeds of their own."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), init_sync=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@repairs(wrapped_without_initial_sync)
def repaired(rank: int) -> None:
    """The model is built under one seed, and the data drawn under another."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), init_sync=False)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
