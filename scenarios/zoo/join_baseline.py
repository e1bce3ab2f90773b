"""Control: a rank without a single batch and others of several lengths train under join, and nothing goes wrong.

A rank that has run out makes the calls of the others: buckets, buffers, and the forming of new buckets, which it may
never have seen. Here with batch norm, and with accumulation under no_sync.
"""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, scenario


@scenario(
    expected=CLEAN,
    reports=["pytorch/pytorch#42577", "pytorch/pytorch#44427", "pytorch/pytorch#61020"],
    tags=["ddp", "join"],
)
def join_baseline(rank: int) -> None:
    """Rank r has 2r batches: rank 0 has none."""
    torch.manual_seed(rank)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 * rank):
            accumulates = step % 2 == 0
            with model.no_sync() if accumulates else nullcontext():
                model(torch.randn(8, 4)).square().mean().backward()
            if not accumulates:
                optimizer.step()
                optimizer.zero_grad()
