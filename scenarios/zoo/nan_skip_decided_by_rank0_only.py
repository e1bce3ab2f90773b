"""All ranks skip a batch together, but only rank 0's loss decides: a NaN elsewhere goes into the average.

The ranks make the same calls and stay equal, with NaN in every parameter. Gloo has nothing to object to.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def batch(rank: int, step: int) -> Tensor:
    """A few numbers; on rank 1 the batch of step 1 is broken."""
    broken = rank == step == 1
    return torch.full((4, 1), torch.nan) if broken else torch.linspace(-1, 1, 4).unsqueeze(1) + rank + step


def alone(world_size: int) -> Snapshot:
    """The same training in one process: a step on the batches of all ranks, unless one of them is broken."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        samples = torch.cat([batch(rank, step) for rank in range(world_size)])
        if not samples.isnan().any():
            model(samples).square().mean().backward()
            optimizer.step()
    return snapshot(model)


def train(rank: int, *, decided_by_all: bool) -> Snapshot:
    """Train on 3 batches, without those that give no number."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(batch(rank, step)).square().mean()
        skip = torch.isnan(loss).int()
        if decided_by_all:
            dist.all_reduce(skip, op=dist.ReduceOp.MAX)
        else:
            dist.broadcast(skip, src=0)  # found here
        if not skip:
            loss.backward()
            optimizer.step()
    return snapshot(model.module)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["ecmwf/WeatherGenerator#2724", "ecmwf/WeatherGenerator#2718"],
    tags=["ddp", "control-flow", "oracle"],
    reference=alone,
)
def nan_skip_decided_by_rank0_only(rank: int) -> Snapshot:
    """Rank 0 broadcasts whether its own loss is a number."""
    return train(rank, decided_by_all=False)


@repairs(nan_skip_decided_by_rank0_only)
def repaired(rank: int) -> Snapshot:
    """A batch is skipped if the loss of any rank is no number."""
    return train(rank, decided_by_all=True)
