"""The join should divide by the ranks that still have input, and with a communication hook it divides by all of them.

Torch's wrapper leaves the division to a hook once there is one, and hooks divide by the size of the group, so
divide_by_initial_world_size=False is silently ignored; real gloo shows no error. Engine "ddp" makes up for the divisor.
"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import CLEAN, finds, repairs, scenario
from scenarios.snapshot import Snapshot, snapshot
from simulator import Code


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def batch(rank: int, step: int) -> torch.Tensor:
    """The rank's own."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * rank + step))


def alone(world_size: int) -> Snapshot:
    """Each step by the mean of the gradients of the ranks with input."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        present = [rank for rank in range(world_size) if rank != 1 or step < 2]
        optimizer.zero_grad()
        for rank in present:
            (model(batch(rank, step)).square().mean() / len(present)).backward()
        optimizer.step()
    return snapshot(model)


def train(rank: int, model: DistributedDataParallel) -> Snapshot:
    """On 2 batches on rank 1, on 4 elsewhere."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=False):  # found here
        for step in range(2 if rank == 1 else 4):
            optimizer.zero_grad()
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
    return snapshot(model.module)


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(world_size))),
    under_ddp=CLEAN,
    tags=["ddp", "join", "hooks", "oracle"],
    reference=alone,
)
def join_divisor_ignored_by_communication_hook(rank: int) -> Snapshot:
    """Register the hook that does what the wrapper does without one."""
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, allreduce_hook)
    return train(rank, model)


@repairs(join_divisor_ignored_by_communication_hook)
def repaired(rank: int) -> Snapshot:
    """No hook."""
    return train(rank, DistributedDataParallel(network()))
