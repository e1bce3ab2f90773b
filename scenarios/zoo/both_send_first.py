"""Two ranks swap a number, and both send before they receive: each waits for the other to receive.

`send` may return at once on some backends while messages are small, so the bug waits for a larger one. The blocking
send of real gloo waits for its receive even for two elements: it blocks at once.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["NVIDIA/nccl#479", "pytorch/pytorch#11275"],
    tags=["point-to-point"],
)
def both_send_first(rank: int) -> float:
    """Ranks 0 and 1 swap a number."""
    mine, theirs = torch.tensor([float(rank)]), torch.zeros(1)
    if rank < 2:
        dist.send(mine, dst=1 - rank)  # found here
        dist.recv(theirs, src=1 - rank)
    return theirs.item()


@repairs(both_send_first)
def repaired(rank: int) -> float:
    """Both messages are handed over together, and the backend may move them in any order."""
    mine, theirs = torch.tensor([float(rank)]), torch.zeros(1)
    if rank < 2:
        swap = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
    return theirs.item()
