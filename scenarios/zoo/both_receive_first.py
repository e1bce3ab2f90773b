"""Every rank of a ring receives before it sends, so no rank ever sends.

The mirror image of sending first, and sure to hang on any backend, however small the message: nothing is on its way.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank), reports=["pytorch/pytorch#11275"], tags=["point-to-point"]
)
def both_receive_first(rank: int) -> float:
    """Take the running total of the rank before, add to it, and hand it on."""
    world_size = dist.get_world_size()
    total = torch.zeros(1)
    dist.recv(total, src=(rank - 1) % world_size)  # found here
    total += rank
    dist.send(total, dst=(rank + 1) % world_size)
    return total.item()


@repairs(both_receive_first)
def repaired(rank: int) -> float:
    """Rank 0 begins: it sends first, and receives the total of all at the end."""
    world_size = dist.get_world_size()
    total = torch.zeros(1)
    if rank > 0:
        dist.recv(total, src=rank - 1)
    total += rank
    dist.send(total, dst=(rank + 1) % world_size)
    if rank == 0:
        dist.recv(total, src=world_size - 1)
    return total.item()
