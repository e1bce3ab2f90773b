"""A ring in which every rank sends first: a blocking send waits for its receive, which no rank reaches.

Real gloo waits for the receive however small the message is.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=every_rank),
    reports=["NVIDIA/nccl#479", "pytorch/pytorch#11275"],
    tags=["point-to-point", "cycle"],
)
def send_send(rank: int) -> float:
    """Hand a number to the next rank, then take the one of the rank before."""
    world_size = dist.get_world_size()
    mine, received = torch.tensor([float(rank)]), torch.zeros(1)
    dist.send(mine, dst=(rank + 1) % world_size)  # found here
    dist.recv(received, src=(rank - 1) % world_size)
    return received.item()


@repairs(send_send)
def repaired(rank: int) -> float:
    """Odd ranks receive first, so each send of an even rank is received, and then the others are."""
    world_size = dist.get_world_size()
    mine, received = torch.tensor([float(rank)]), torch.zeros(1)
    if rank % 2 == 1:
        dist.recv(received, src=(rank - 1) % world_size)
    dist.send(mine, dst=(rank + 1) % world_size)
    if rank % 2 == 0:
        dist.recv(received, src=(rank - 1) % world_size)
    return received.item()
