"""One rank raises inside its communication hook: its bucket is never reduced, and the others wait for it.

On gloo the rank's exception comes out of its backward, and the others report an error of their hook's future, which
says nothing about the first.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def checking_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Refuse gradients that are no numbers, and average the others."""
    if not torch.isfinite(bucket.buffer()).all():
        raise ValueError("a gradient is no number")  # found here
    return allreduce_hook(group, bucket)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#6430"],
    tags=["ddp", "control-flow", "hooks"],
)
def exception_in_communication_hook(rank: int) -> None:
    """Train on 3 batches, of which one is broken on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(dist.group.WORLD, checking_hook)
    for step in range(3):
        batch = torch.randn(8, 10)
        model(batch / 0 if rank == 1 and step == 2 else batch).square().mean().backward()


def replacing_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Count gradients that are no numbers as zero."""
    bucket.buffer().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return allreduce_hook(group, bucket)


@repairs(exception_in_communication_hook)
def repaired(rank: int) -> None:
    """The hook reduces whatever comes, and only leaves out what is no number."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(dist.group.WORLD, replacing_hook)
    for step in range(3):
        batch = torch.randn(8, 10)
        model(batch / 0 if rank == 1 and step == 2 else batch).square().mean().backward()
