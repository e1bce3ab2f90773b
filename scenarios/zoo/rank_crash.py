"""A rank dies in the middle of training: its own exception leads the report, the ranks that wait for it come second."""

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import Expectation, Scenario
from simulator import Code, Crash, Verdict


def program(rank: int) -> None:
    """Train on 3 batches. Nothing is wrong here: the crash is a fault of the scenario."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


SCENARIO = Scenario(
    name="rank-crash",
    summary="one rank crashes in its second backward, and the others wait for it",
    program=program,
    expected=Expectation(Verdict.FAIL, Code.RANK_ERROR, (1,)),
    faults=(Crash(rank=1, before_call=6),),
    tags=("ddp", "fault"),
)
