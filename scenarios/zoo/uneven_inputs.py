"""Uneven inputs under `join`: a rank that has run out of batches makes the collectives that the others wait for."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, scenario


@scenario(expected=CLEAN, tags=["ddp", "join"])
def uneven_inputs(rank: int) -> list[float]:
    """Train on 3, 4 or 5 batches, depending on the rank; all ranks end with the same parameters."""
    torch.manual_seed(rank)  # every rank draws its own data; DDP starts them all from rank 0's parameters
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(3 + rank % 3):
            optimizer.zero_grad()
            model(torch.randn(8, 10)).square().mean().backward()
            optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
