"""Two groups in opposite order: each rank waits in a call of one group for a rank that waits in a call of the other."""

import torch
import torch.distributed as dist

from scenarios.model import Expectation, Scenario
from simulator import Code, Verdict


def program(rank: int) -> None:
    """Reduce over two groups of the same ranks: even ranks use the first group first, odd ranks the second."""
    everybody = list(range(dist.get_world_size()))
    first, second = dist.new_group(everybody), dist.new_group(everybody)
    for group in (first, second) if rank % 2 == 0 else (second, first):
        dist.all_reduce(torch.ones(2), group=group)


SCENARIO = Scenario(
    name="group-order-inversion",
    summary="odd ranks use two groups in the opposite order",
    program=program,
    expected=Expectation(Verdict.FAIL, Code.DEADLOCK_CYCLE, (0, 1)),
    tags=("groups", "cycle"),
)
