"""A batch on one rank has a receive for which no rank sends.

One side was written as an exchange, the other as a receive. Real gloo: the rank that only receives is done, and the
other fails as its peer leaves.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def exchange(operations: list[dist.P2POp]) -> None:
    """Make the messages of a batch, and wait for them."""
    for work in dist.batch_isend_irecv(operations):  # found here
        work.wait()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["NVIDIA/nccl#2130", "pytorch/PiPPy#969", "pytorch/pytorch#74701", "pytorch/pytorch#109401"],
    tags=["point-to-point"],
    world_size=2,
    max_world_size=2,
)
def batch_of_messages_without_partner(rank: int) -> None:
    """Rank 0 exchanges, rank 1 only receives."""
    received = torch.empty(2)
    operations = [dist.P2POp(dist.irecv, received, 1 - rank)]
    if rank == 0:
        operations.append(dist.P2POp(dist.isend, torch.ones(2), 1))
    exchange(operations)


@repairs(batch_of_messages_without_partner)
def repaired(rank: int) -> None:
    """Both send and receive."""
    received = torch.empty(2)
    exchange([dist.P2POp(dist.irecv, received, 1 - rank), dist.P2POp(dist.isend, torch.ones(2), 1 - rank)])
