"""The handle of an `isend` is thrown away and the rank ends: nothing says that the message has left by then.

The transfer needs its sender alive. On real gloo the sender ends well, and the receiver, if it comes later, finds the
connection closed; in a simulation the message arrives, so it can only be a hazard.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=1),
    reports=["pytorch/pytorch#78514", "pytorch/pytorch#75512"],
    tags=["point-to-point", "teardown"],
)
def isend_dropped_then_exit(rank: int) -> float:
    """Rank 1 reports its loss to rank 0, as the last thing it does."""
    loss = torch.tensor([float(rank)])
    if rank == 1:
        dist.isend(loss, dst=0)  # found here
    elif rank == 0:
        dist.recv(loss, src=1)
    return loss.item()


@repairs(isend_dropped_then_exit)
def repaired(rank: int) -> float:
    """A blocking send has been received when it returns; with isend, the rank keeps the handle and waits."""
    loss = torch.tensor([float(rank)])
    if rank == 1:
        dist.send(loss, dst=0)
    elif rank == 0:
        dist.recv(loss, src=1)
    return loss.item()
