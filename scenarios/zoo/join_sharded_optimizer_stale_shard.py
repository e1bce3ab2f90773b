"""A rank that has joined continues to update its shard of the parameters, with the gradients of its own last batch.

Torch's join makes up for the calls of ZeroRedundancyOptimizer, but gives joined ranks no averaged gradients: all ranks
agree on wrong parameters, and real gloo shows no error. Under engine "ddp" joined ranks have everybody's gradients.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, weights: list[float]) -> None:
    """One step for each weight of the loss."""
    for batch, weight in zip(torch.eye(4), weights, strict=False):
        optimizer.zero_grad()
        (weight * model(batch).square().mean()).backward()
        optimizer.step()


def alone(world_size: int) -> Snapshot:
    """As all ranks have the same batches, the loss weighs less once rank 1 has no more."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    less = (world_size - 1) / world_size
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 1, less, less])
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#54318", "pytorch/pytorch#60757"],
    tags=["ddp", "join", "optimizer", "oracle"],
    reference=alone,
)
def join_sharded_optimizer_stale_shard(rank: int) -> Snapshot:
    """Join the model and its sharded optimizer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):  # found here
        train(model, optimizer, [1, 1] if rank == 1 else [1, 1, 1, 1])
    return snapshot(model.module)


@repairs(join_sharded_optimizer_stale_shard)
def repaired(rank: int) -> Snapshot:
    """Every rank has the whole optimizer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        train(model, optimizer, [1, 1] if rank == 1 else [1, 1, 1, 1])
    return snapshot(model.module)
