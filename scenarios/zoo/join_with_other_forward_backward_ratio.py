"""Inside the join the loop also evaluates through the wrapper, and a rank that has joined expects a backward to follow.

Torch's join makes up for one forward and one backward in each round, and takes an evaluation under no_grad for such a
forward: on real gloo one process aborts. Engine "ddp" follows whatever the others do.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


@scenario(expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join"])
def join_with_other_forward_backward_ratio(rank: int) -> None:
    """Train on 4 batches, and on 2 on rank 1; look at the predictions after each."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            model(batch).square().mean().backward()  # found here
            with torch.no_grad():
                model(batch)


@repairs(join_with_other_forward_backward_ratio)
def repaired(rank: int) -> None:
    """Look at the predictions of the inner module, which does not communicate."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            model(batch).square().mean().backward()
            with torch.no_grad():
                model.module(batch)
