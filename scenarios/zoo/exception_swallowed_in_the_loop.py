"""A rank swallows an error in one step and continues with its next batch: from there on it is one step late.

Handlers that skip a batch are common, and right on one device. Real gloo: adds up gradients of different steps, and
times out in the barrier.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def train(rank: int, *, goes_on: bool) -> None:
    """Three steps; the second of rank 1 fails before its backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(3):
        loss = model(torch.randn(8, 10)).square().mean()
        try:
            if (rank, step) == (1, 1):
                raise torch.OutOfMemoryError("out of memory")
        except torch.OutOfMemoryError:
            if goes_on:
                continue
            loss = 0 * loss
        loss.backward()  # found here
    dist.barrier()


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["facebookresearch/fairseq#3989", "facebookresearch/fairseq#708", "facebookresearch/fairseq#1359"],
    tags=["ddp", "control-flow"],
    min_world_size=3,
)
def exception_swallowed_in_the_loop(rank: int) -> None:
    """Skip the batch that failed."""
    train(rank, goes_on=True)


@repairs(exception_swallowed_in_the_loop)
def repaired(rank: int) -> None:
    """The rank takes part in the step, with a loss that weighs nothing."""
    train(rank, goes_on=False)
