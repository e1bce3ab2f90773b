"""Two wrapped models train in one loop, and the join is that of one of them.

A rank that has joined makes up for the calls of the first model only, and those of the second one meet them: on real
gloo a process aborts, or all wait. Engine "ddp" refuses the second model's forward on every rank.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#54318", "pytorch/tutorials#1610"],
    tags=["ddp", "join"],
)
def join_does_not_cover_all_joinables(rank: int) -> None:
    """Train both on 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    first = DistributedDataParallel(torch.nn.Linear(4, 1))
    second = DistributedDataParallel(torch.nn.Linear(4, 2))
    with first.join():  # found here by torch
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()  # found here


@repairs(join_does_not_cover_all_joinables)
def repaired(rank: int) -> None:
    """Join both, in the order in which they communicate."""
    torch.manual_seed(rank)
    first = DistributedDataParallel(torch.nn.Linear(4, 1))
    second = DistributedDataParallel(torch.nn.Linear(4, 2))
    with Join([first, second]):
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()
