"""Sender and receiver number their messages differently: each waits for a partner with its own tag.

A message is taken only by a receive with the same tag. On real gloo one rank times out, and the other then sees a
closed connection.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)), tags=["point-to-point"])
def message_tags_differ(rank: int) -> float:
    """Hand a number from rank 0 to rank 1; rank 0 counts steps from 1, and rank 1 from 0."""
    number = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(number, dst=1, tag=1)  # found here
    elif rank == 1:
        dist.recv(number, src=0, tag=0)
    return number.item()


@repairs(message_tags_differ)
def repaired(rank: int) -> float:
    """Both count from 0."""
    number = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(number, dst=1, tag=0)
    elif rank == 1:
        dist.recv(number, src=0, tag=0)
    return number.item()
