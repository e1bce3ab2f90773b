"""Two forwards before one backward: the second one's broadcast of buffers does not disturb the first one's graph.

Older releases raised "modified by an inplace operation", as the broadcast changed buffers that the first forward had
saved. Real gloo with torch 2.13: no error, the replicas stay equal.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, scenario


@scenario(
    expected=CLEAN,
    reports=["pytorch/pytorch#175024", "pytorch/pytorch#22095", "pytorch/pytorch#65907", "pytorch/pytorch#175851"],
    tags=["reducer", "buffers", "ddp"],
)
def two_forwards_one_backward_with_buffers(rank: int) -> None:
    """Compare two views of a batch, each in a forward of its own."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        first, second = torch.randn(8, 10), torch.randn(8, 10)
        (model(first) - model(second)).square().mean().backward()
        optimizer.step()
