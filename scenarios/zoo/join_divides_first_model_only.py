"""Two models join with divide_by_initial_world_size=False, and only the first one's gradients are divided that way.

In torch's join only the first model announces its forward, and the number of ranks present comes back with that; the
others divide by the world size. All ranks agree, so nothing shows but the numbers. Our engine asks for each model.
"""

from collections.abc import Sequence

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, join_model_snapshots, snapshot


def alone(world_size: int) -> Snapshot:
    """A step of all ranks, then one of those that have a second batch, which is all but rank 1."""
    models = [torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)]
    for model in models:
        torch.nn.init.constant_(model.weight, 1 - 0.1 - 0.1)  # a gradient of 1 on each rank, so 1 on average
    return join_model_snapshots({str(index): snapshot(model) for index, model in enumerate(models)})


def train(models: Sequence[DistributedDataParallel], batches: int) -> None:
    """Each model makes its whole step in turn."""
    for _ in range(batches):
        for model in models:
            model.zero_grad()
            model(torch.ones(1, 1)).mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()


def wrapped() -> list[DistributedDataParallel]:
    """Two models of one weight, which is 1."""
    models = [DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)) for _ in range(2)]
    for model in models:
        torch.nn.init.ones_(model.module.weight)
    return models


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "oracle"],
    reference=alone,
)
def join_divides_first_model_only(rank: int) -> Snapshot:
    """Train both in one join, on 2 batches, and on 1 on rank 1."""
    models = wrapped()
    with Join([*models], divide_by_initial_world_size=False):  # found here by torch
        train(models, 1 if rank == 1 else 2)
    return join_model_snapshots({str(index): snapshot(model.module) for index, model in enumerate(models)})


@repairs(join_divides_first_model_only)
def repaired(rank: int) -> Snapshot:
    """Each model is the first of a join of its own."""
    models = wrapped()
    for model in models:
        with Join([model], divide_by_initial_world_size=False):
            train([model], 1 if rank == 1 else 2)
    return join_model_snapshots({str(index): snapshot(model.module) for index, model in enumerate(models)})
