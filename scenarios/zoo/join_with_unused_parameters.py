"""A rank that has joined says that it still uses the parameters it used last, so one that nobody uses keeps moving.

Torch's join sends the joined rank's map of used parameters of the step before, or memory that was never set. So the
parameter gets a gradient of zeros in place of none, and momentum moves it. Real gloo shows no error. Under engine "ddp"
a joined rank uses nothing.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios.model import CLEAN, finds, repairs, scenario
from scenarios.snapshot import Snapshot, snapshot
from simulator import Code

TASKS = (0, 1, 1)
"""Which layer each step trains. Rank 1 has input for the first step only."""


class Tasks(torch.nn.ModuleList):
    """A layer for each of two tasks."""

    def forward(self, task: int) -> torch.Tensor:
        """The loss of the task."""
        return self[task](torch.ones(4)).square().sum()  # type: ignore[no-any-return]


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return Tasks([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """With momentum: it moves a parameter that has a gradient of zeros, but none without a gradient."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(world_size: int) -> Snapshot:
    """The loss is that of the ranks with input, over the world size."""
    model = network()
    optimizer = sgd(model)
    for step, task in enumerate(TASKS):
        optimizer.zero_grad()
        (model(task) * (world_size - (step > 0)) / world_size).backward()
        optimizer.step()
    return snapshot(model)


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(world_size))),
    under_ddp=CLEAN,
    tags=["ddp", "join", "reducer", "oracle"],
    reference=alone,
)
def join_with_unused_parameters(rank: int) -> Snapshot:
    """Join with find_unused_parameters."""
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    optimizer = sgd(model)
    with model.join():  # found here
        for task in TASKS[:1] if rank == 1 else TASKS:
            optimizer.zero_grad()
            model(task).backward()
            optimizer.step()
    return snapshot(model.module)


@repairs(join_with_unused_parameters)
def repaired(rank: int) -> Snapshot:
    """No join: rank 1 makes every step, with a loss of zero where it has no input."""
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    optimizer = sgd(model)
    for step, task in enumerate(TASKS):
        optimizer.zero_grad()
        (model(task) * (0 if rank == 1 and step > 0 else 1)).backward()
        optimizer.step()
    return snapshot(model.module)
