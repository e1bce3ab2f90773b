"""A rank that has joined goes on updating its shard of the parameters, with the gradients of its own last batch.

Torch's join makes up for the calls of ZeroRedundancyOptimizer, but gives joined ranks no averaged gradients: all ranks
agree on wrong parameters, and real gloo shows no error. Under engine "ddp" joined ranks have everybody's gradients.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import CLEAN, finds, repairs, scenario
from scenarios.snapshot import Snapshot, snapshot
from simulator import Code


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))


def train(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """On 2 batches on rank 1, on 4 elsewhere."""
    for step in range(2 if rank == 1 else 4):
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()


def batch(rank: int, step: int) -> torch.Tensor:
    """The rank's own."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * rank + step))


def alone(world_size: int) -> Snapshot:
    """Each step by the gradients of the ranks with input, over the world size."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(world_size):
            if rank != 1 or step < 2:
                (model(batch(rank, step)).square().mean() / world_size).backward()
        optimizer.step()
    return snapshot(model)


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(world_size))),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#54318", "pytorch/pytorch#60757"],
    tags=["ddp", "join", "optimizer", "oracle"],
    reference=alone,
)
def join_sharded_optimizer_stale_shard(rank: int) -> Snapshot:
    """Join the model and its sharded optimizer."""
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):  # found here
        train(rank, model, optimizer)
    return snapshot(model.module)


@repairs(join_sharded_optimizer_stale_shard)
def repaired(rank: int) -> Snapshot:
    """Every rank has the whole optimizer."""
    model = DistributedDataParallel(network())
    with model.join():
        train(rank, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return snapshot(model.module)
