"""A batch of messages returns a work for each, and the program waits for the last one only.

On a backend that runs the batch as one, a single work stands for all. On gloo each has its own: what is received may
be read before it is there. Real gloo: no error, here and often the right values.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario


def exchange(rank: int) -> list[dist.Work]:
    """Messages to the next rank and from the one before."""
    size = dist.get_world_size()
    received = torch.empty(2)
    return dist.batch_isend_irecv(  # found here
        [dist.P2POp(dist.irecv, received, (rank - 1) % size), dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size)]
    )


@scenario(
    expected=finds(Code.HAZARD_UNWAITED_WORK, ranks=every_rank),
    reports=["pytorch/pytorch#132644", "pytorch/pytorch#152938"],
    tags=["point-to-point", "pipeline"],
)
def one_work_of_a_batch(rank: int) -> None:
    """Pass a block on around the ring."""
    exchange(rank).pop().wait()


@repairs(one_work_of_a_batch)
def repaired(rank: int) -> None:
    """Wait for each."""
    for work in exchange(rank):
        work.wait()
