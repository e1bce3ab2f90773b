"""Rank 0 makes one forward more, which broadcasts how buckets are rebuilt after the first step.

It needs no buffers: the layout of the buckets is shared once, in the forward that follows the first backward. Real
gloo: the broadcast meets a barrier, and both time out.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=0),
    under_ddp=finds(Code.MISMATCH_OPERATION, ranks=0),
    reports=["pytorch/pytorch#54159", "pytorch/pytorch#54059", "pytorch/PiPPy#665"],
    tags=["reducer", "ddp"],
    min_world_size=3,
)
def rank0_forward_rebuilds_buckets(rank: int) -> None:
    """A step, an extra forward on rank 0, and a step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model(torch.randn(8, 10)).square().mean().backward()
    if rank == 0:
        model(torch.randn(8, 10))  # found here
    dist.barrier()
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(rank0_forward_rebuilds_buckets)
def repaired(rank: int) -> None:
    """The extra forward is one of the inner module."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model(torch.randn(8, 10)).square().mean().backward()
    if rank == 0:
        model.module(torch.randn(8, 10))
    dist.barrier()
    model(torch.randn(8, 10)).square().mean().backward()
