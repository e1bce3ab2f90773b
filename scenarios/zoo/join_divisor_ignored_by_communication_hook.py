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


def train(model: torch.nn.Module, batches: torch.Tensor) -> None:
    """One step for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def alone(world_size: int) -> Snapshot:
    """As all ranks have the same batches, the mean over those with input is what one process has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    train(model, torch.eye(4))
    return snapshot(model)


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(world_size))),
    under_ddp=CLEAN,
    tags=["ddp", "join", "hooks", "oracle"],
    reference=alone,
)
def join_divisor_ignored_by_communication_hook(rank: int) -> Snapshot:
    """Register the hook that does what the wrapper does without one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, allreduce_hook)
    with model.join(divide_by_initial_world_size=False):  # found here
        train(model, torch.eye(4)[:2] if rank == 1 else torch.eye(4))
    return snapshot(model.module)


@repairs(join_divisor_ignored_by_communication_hook)
def repaired(rank: int) -> Snapshot:
    """No hook."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join(divide_by_initial_world_size=False):
        train(model, torch.eye(4)[:2] if rank == 1 else torch.eye(4))
    return snapshot(model.module)
