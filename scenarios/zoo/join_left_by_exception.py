"""One rank meets a bad record inside the join and leaves it by an exception.

Torch's join then returns at once, without making up for anything, and the others wait for a rank that has left: on real
gloo their connection is closed, far from the cause. Under engine "ddp" every rank gets an error that names that rank.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def batch_of(rank: int, step: int) -> torch.Tensor:
    """The rank's next batch."""
    if rank == 1 and step == 2:
        raise ValueError("record 17 cannot be decoded")  # found here
    return torch.randn(8, 4)


@scenario(expected=finds(Code.RANK_ERROR, ranks=1), tags=["ddp", "join", "control-flow"])
def join_left_by_exception(rank: int) -> None:
    """Train on 4 batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for step in range(4):
            model(batch_of(rank, step)).square().mean().backward()


@repairs(join_left_by_exception)
def repaired(rank: int) -> None:
    """The bad record is skipped, before the forward: the rank has one batch less, which is what join is for."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for step in range(4):
            try:
                batch = batch_of(rank, step)
            except ValueError:
                continue
            model(batch).square().mean().backward()
