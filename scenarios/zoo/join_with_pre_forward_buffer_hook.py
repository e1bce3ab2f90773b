"""A hook averages a buffer before each forward, and a rank that has joined goes on adding its old one.

Torch's join calls the hook on joined ranks as well, and it cannot tell that it runs on one: all ranks agree on a wrong
average, and real gloo shows no error. Engine "ddp" leaves joined ranks out of its averages.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from scenarios.model import CLEAN, finds, repairs, scenario
from scenarios.snapshot import Snapshot, snapshot
from simulator import Code


def train(rank: int, *, weighs_when_joined: float) -> Snapshot:
    """Rank 1 has two batches, the others have four."""
    weight = torch.ones(1)
    model: Any = DistributedDataParallel(torch.nn.BatchNorm1d(4, momentum=0.5))
    if hasattr(model, "register_buffer_comm_hook"):  # engine "ddp" has averages of its own
        model.register_buffer_comm_hook("running_mean", "mean", when="before")
    else:
        model._register_buffer_comm_hook(weight, average, _BufferCommHookLocation.PRE_FORWARD)
    with model.join():  # found here
        for step in range(2 if rank == 1 else 4):
            model(batch(rank, step)).square().mean().backward()
        weight.fill_(weighs_when_joined)
    return snapshot(model.module)


def batch(rank: int, step: int) -> torch.Tensor:
    """Each batch has another mean."""
    return torch.arange(8.0).reshape(2, 4) + 10 * rank + step


def average(weight: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
    """The hook: the mean over the ranks, by weight."""
    total = torch.cat([weight * buffers["running_mean"], weight])
    dist.all_reduce(total)
    buffers["running_mean"].copy_(total[:-1] / total[-1])


def alone(world_size: int) -> Snapshot:
    """What the last rank with input holds, if only those with input are averaged."""
    means = [torch.zeros(4)] * world_size
    for step in range(4):
        present = [rank for rank in range(world_size) if rank != 1 or step < 2]
        shared = torch.stack([means[rank] for rank in present]).mean(dim=0)
        for rank in present:
            means[rank] = shared.lerp(batch(rank, step).mean(dim=0), 0.5)
    return Snapshot({}, {"running_mean": means[present[-1]]}, {})


@scenario(
    about=__doc__,
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=lambda world_size: tuple(range(world_size))),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#65436"],
    tags=["ddp", "join", "buffers", "hooks", "oracle"],
    reference=alone,
)
def join_with_pre_forward_buffer_hook(rank: int) -> Snapshot:
    """A rank weighs as much after its loop as before."""
    return train(rank, weighs_when_joined=1.0)


@repairs(join_with_pre_forward_buffer_hook)
def repaired(rank: int) -> Snapshot:
    """A rank weighs nothing once its loop is over, which is when join begins to call the hook for it."""
    return train(rank, weighs_when_joined=0.0)
