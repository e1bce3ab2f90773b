"""The join is that of the model alone, and its sharded optimizer broadcasts parameters in every step as well.

A rank that has joined makes up for the model's calls only, so the optimizer's broadcasts meet those: on real gloo
all wait until a time-out. Engine "ddp" makes up for them, but a joined rank's own shard it has to refuse.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def train(rank: int, *, joins_optimizer: bool) -> None:
    """4 steps, and 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]) if joins_optimizer else model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()  # found here by torch


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#54318"],
    tags=["ddp", "join", "optimizer"],
)
def join_without_the_sharded_optimizer(rank: int) -> None:
    """Join the model."""
    train(rank, joins_optimizer=False)


@repairs(join_without_the_sharded_optimizer)
def repaired(rank: int) -> None:
    """Join both, in the order in which they communicate."""
    train(rank, joins_optimizer=True)
