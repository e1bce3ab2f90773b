"""A rank within the group is given as the source: `src` is a global rank, and rank 0 is no member of this group.

The caller means the first member. On real gloo, too, every member raises, and ranks that need them later wait forever.
"""

import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["meta-pytorch/torchrec#4601", "pytorch/pytorch#74602", "pytorch/pytorch#149200", "radixark/miles#833"],
    tags=["raw", "groups"],
)
def group_rank_used_as_global_root(rank: int) -> object:
    """Share settings among all ranks but rank 0, which has a task of its own."""
    members = list(range(1, dist.get_world_size()))
    workers = dist.new_group(members)
    if rank not in members:
        return None
    settings = [{"rate": 0.1} if rank == members[0] else None]
    dist.broadcast_object_list(settings, src=0, group=workers)  # found here
    return settings[0]


@repairs(group_rank_used_as_global_root)
def repaired(rank: int) -> object:
    """`group_src` takes a rank within the group."""
    members = list(range(1, dist.get_world_size()))
    workers = dist.new_group(members)
    if rank not in members:
        return None
    settings = [{"rate": 0.1} if rank == members[0] else None]
    dist.broadcast_object_list(settings, group_src=0, group=workers)
    return settings[0]
