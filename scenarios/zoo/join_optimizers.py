"""Joins of models with a sharded optimizer."""

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train_with_weights(model: torch.nn.Module, optimizer: torch.optim.Optimizer, weights: list[float]) -> None:
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
    train_with_weights(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 1, less, less])
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#54318", "pytorch/pytorch#60757"],
    tags=["ddp", "join", "optimizer", "oracle"],
    reference=alone,
)
def join_sharded_optimizer_stale_shard(rank: int) -> Snapshot:
    """A rank that has joined continues to update its shard of the parameters, with the gradients of its own last batch.

    Torch's join makes up for the calls of ZeroRedundancyOptimizer, but gives joined ranks no averaged gradients:
    all ranks agree on wrong parameters, and real gloo shows no error. Under engine "ddp" joined ranks have
    everybody's gradients.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):  # found here
        train_with_weights(model, optimizer, [1, 1] if rank == 1 else [1, 1, 1, 1])
    return snapshot(model.module)


@repairs(join_sharded_optimizer_stale_shard)
def join_sharded_optimizer_stale_shard_repaired(rank: int) -> Snapshot:
    """Every rank has the whole optimizer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        train_with_weights(model, optimizer, [1, 1] if rank == 1 else [1, 1, 1, 1])
    return snapshot(model.module)


def train_jointly(rank: int, *, joins_optimizer: bool) -> None:
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
    """The join is that of the model alone, and its sharded optimizer broadcasts parameters in every step as well.

    A rank that has joined makes up for the model's calls only, so the optimizer's broadcasts meet those: on real
    gloo all wait until a time-out. Engine "ddp" makes up for them, but a joined rank's own shard it has to refuse.
    """
    train_jointly(rank, joins_optimizer=False)


@repairs(join_without_the_sharded_optimizer)
def join_without_the_sharded_optimizer_repaired(rank: int) -> None:
    """Join both, in the order in which they communicate."""
    train_jointly(rank, joins_optimizer=True)
