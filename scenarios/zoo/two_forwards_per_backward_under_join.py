"""Inside the join each loss takes two forwards and one backward, and a rank that has joined expects two backwards.

Torch's join makes up for one forward and one backward in each round: on real gloo one process aborts. Engine "ddp"
follows whatever the others do.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join"])
def two_forwards_per_backward_under_join(rank: int) -> None:
    """Compare two views of 4 batches, and of 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            left, right = model(torch.randn(8, 4)), model(torch.randn(8, 4))  # found here
            (left - right).square().mean().backward()


@repairs(two_forwards_per_backward_under_join)
def repaired(rank: int) -> None:
    """Both views go through one forward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            left, right = model(torch.randn(16, 4)).split(8)
            (left - right).square().mean().backward()
