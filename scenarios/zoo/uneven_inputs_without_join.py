"""Uneven inputs without `join`: one rank has a batch less, and the others wait for its gradients for ever."""

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


def program(rank: int) -> None:
    """Train on 5 batches, and on 4 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4 if rank == 1 else 5):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # the fifth one reduces with a rank that has returned
        optimizer.step()


SCENARIO = Scenario(
    name="uneven-inputs-without-join",
    summary="one rank has a batch less than the others, and nothing shadows its collectives",
    program=program,
    expected=Expectation(Verdict.FAIL, Code.DEADLOCK_MISSING_RANK, (1,)),
    tags=("ddp", "join"),
)
