"""Only its members make a group: they do without the others, but on those the next group goes by another number.

torch names a group by how many the rank has made before, and ranks meet by that name. Real gloo makes the first group,
and all ranks hang in the next `new_group`, past any time-out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_GROUP, ranks=1), reports=["pytorch/pytorch#25390"], tags=["groups"], min_world_size=3
)
def new_group_called_by_members_only(rank: int) -> None:
    """Make a group of all ranks but rank 1, then one of all ranks."""
    members = [other for other in range(dist.get_world_size()) if other != 1]
    if rank in members:
        dist.new_group(members)
    everybody = dist.new_group()  # found here
    dist.all_reduce(torch.ones(1), group=everybody)


@repairs(new_group_called_by_members_only)
def repaired(rank: int) -> None:
    """Every rank makes both groups, in one order."""
    members = [other for other in range(dist.get_world_size()) if other != 1]
    dist.new_group(members)
    everybody = dist.new_group()
    dist.all_reduce(torch.ones(1), group=everybody)
