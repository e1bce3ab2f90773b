"""The ranks of a second replica load optimizer state by a broadcast from rank 0, which is not among those who call it.

The group was left out, so the default group is used, and its other ranks never come. Real gloo: the others get an
error as their peers end, or time out.
"""

import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=(0, 1)),
    reports=["pytorch/pytorch#155680"],
    tags=["groups", "checkpoint"],
    min_world_size=4,
    max_world_size=4,
)
def state_broadcast_from_outside_the_group(rank: int) -> None:
    """Load a state in the group of ranks 2 and 3."""
    dist.new_group([2, 3])
    if rank in (2, 3):
        dist.broadcast_object_list([{"step": 1}], src=0)  # found here


@repairs(state_broadcast_from_outside_the_group)
def repaired(rank: int) -> None:
    """The group and its first rank are named."""
    replica = dist.new_group([2, 3])
    if rank in (2, 3):
        dist.broadcast_object_list([{"step": 1}], group_src=0, group=replica)
