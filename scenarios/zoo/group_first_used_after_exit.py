"""A group is used for the first time when one of its ranks has returned already: the others wait for it.

Nothing failed while it lived, as a group connects with its first call. Real gloo: the others get an error as its
process has ended, or wait on beyond their time-out where connections are made lazily.
"""

import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=0),
    reports=["pytorch/gloo#520"],
    tags=["groups", "teardown"],
    min_world_size=3,
)
def group_first_used_after_exit(rank: int) -> None:
    """Make a group for the end, and use it on all ranks but the first, which is done."""
    closing = dist.new_group()  # found here
    if rank == 0:
        return
    dist.barrier(group=closing)


@repairs(group_first_used_after_exit)
def repaired(rank: int) -> None:
    """Every rank of the group reaches its calls."""
    closing = dist.new_group()
    dist.barrier(group=closing)
