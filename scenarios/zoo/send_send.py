"""A ring in which everybody sends first: a blocking send waits for its receive, which nobody reaches."""

import torch
import torch.distributed as dist

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


def program(rank: int) -> float:
    """Hand a number to the next rank, then take the one of the rank before."""
    world_size = dist.get_world_size()
    mine, received = torch.tensor([float(rank)]), torch.zeros(1)
    dist.send(mine, dst=(rank + 1) % world_size)
    dist.recv(received, src=(rank - 1) % world_size)
    return received.item()


SCENARIO = Scenario(
    name="send-send",
    summary="every rank of a ring sends before it receives",
    program=program,
    expected=Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, lambda world_size: tuple(range(world_size))),
    tags=("point-to-point", "cycle"),
)
