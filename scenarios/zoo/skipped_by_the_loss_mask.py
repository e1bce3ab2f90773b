"""A rank leaves micro-batches out whose tokens are all masked, counts only the others, and steps later than its peers.

Its window ends on another micro-batch, so its bucket meets one of the others' next window. Real gloo: adds up what
does not belong together, and times out at the end.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario

WINDOW = 2


def is_masked(rank: int, index: int) -> bool:
    """True for the first micro-batch of rank 1, an answer that was cut off."""
    return (rank, index) == (1, 0)


def train(rank: int, *, skips: bool) -> None:
    """Three windows of two micro-batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    for index in range(3 * WINDOW):
        weight = 0.0 if is_masked(rank, index) else 1.0
        if skips and not weight:
            continue
        done += 1
        with nullcontext() if done % WINDOW == 0 else model.no_sync():
            (weight * model(torch.randn(8, 10)).square().mean()).backward()
        if done % WINDOW == 0:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # found here


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1), tags=["accumulation", "control-flow", "ddp"], min_world_size=3
)
def skipped_by_the_loss_mask(rank: int) -> None:
    """Leave masked micro-batches out, and do not count them."""
    train(rank, skips=True)


@repairs(skipped_by_the_loss_mask)
def repaired(rank: int) -> None:
    """A masked micro-batch counts, with a loss of zero."""
    train(rank, skips=False)
