"""A hook averages a buffer before each forward, and a rank that has joined keeps adding its old one.

Torch's join calls the hook on joined ranks as well, where it cannot tell: all agree on a wrong average, and real gloo
shows no error. Engine "ddp" leaves joined ranks out of its averages.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel, _BufferCommHookLocation

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def average(weight: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
    """The hook: the mean over the ranks, by weight."""
    total = torch.cat([weight * buffers["running_mean"], weight])
    dist.all_reduce(total)
    buffers["running_mean"].copy_(total[0] / total[1])


def train(rank: int, *, weighs_when_joined: float) -> Snapshot:
    """Rank 1 has two batches, the others have four; the mean of each is the rank."""
    weight = torch.ones(1)
    model = DistributedDataParallel(torch.nn.BatchNorm1d(1, momentum=0.5))
    if hasattr(model, "register_buffer_comm_hook"):  # engine "ddp" has averages of its own
        model.register_buffer_comm_hook("running_mean", "mean", when="before")  # type: ignore[operator]
    else:
        model._register_buffer_comm_hook(weight, average, _BufferCommHookLocation.PRE_FORWARD)
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.tensor([[rank - 1.0], [rank + 1.0]])).square().mean().backward()
        weight.fill_(weighs_when_joined)
    return snapshot(model.module)


def alone(world_size: int) -> Snapshot:
    """Half of the average before the last batch, and half of that batch, if only ranks with input are averaged."""
    mean, others = 0.0, [0, *range(2, world_size)]
    for present in ([1, *others], others, others):
        mean = (mean + sum(present) / len(present)) / 2
    return Snapshot({}, {"running_mean": torch.tensor([(mean + others[-1]) / 2])}, {})


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
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
