"""A rank that has joined says that it still uses the parameters it used last, so one that no rank uses keeps moving.

Torch's join sends the joined rank's map of used parameters of the step before, or memory that was never set. So the
parameter gets a gradient of zeros in place of none, and momentum moves it. Real gloo shows no error. Under engine "ddp"
a joined rank uses nothing.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


class Tasks(torch.nn.ModuleList):
    """A layer for each of two tasks."""

    def forward(self, task: int) -> torch.Tensor:
        """The loss of the task."""
        return self[task](torch.tensor([-1.0])).square().sum()  # type: ignore[no-any-return]


def train(model: torch.nn.Module, weights: list[float]) -> None:
    """One step of task 0, and two of task 1, or as many as there are weights for the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for task, weight in zip([0, 1, 1], weights, strict=False):
        optimizer.zero_grad()
        (weight * model(task)).backward()
        optimizer.step()


def alone(world_size: int) -> Snapshot:
    """As all ranks have the same losses, they weigh less once rank 1 has no more."""
    model = Tasks([torch.nn.PReLU(), torch.nn.PReLU()])
    less = (world_size - 1) / world_size
    train(model, [1, less, less])
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "reducer", "oracle"],
    reference=alone,
)
def join_with_unused_parameters(rank: int) -> Snapshot:
    """Join with find_unused_parameters."""
    model = DistributedDataParallel(Tasks([torch.nn.PReLU(), torch.nn.PReLU()]), find_unused_parameters=True)
    with model.join():  # found here
        train(model, [1] if rank == 1 else [1, 1, 1])
    return snapshot(model.module)


@repairs(join_with_unused_parameters)
def repaired(rank: int) -> Snapshot:
    """No join: rank 1 makes every step, with a loss of zero where it has no input."""
    model = DistributedDataParallel(Tasks([torch.nn.PReLU(), torch.nn.PReLU()]), find_unused_parameters=True)
    train(model, [1, 0, 0] if rank == 1 else [1, 1, 1])
    return snapshot(model.module)
