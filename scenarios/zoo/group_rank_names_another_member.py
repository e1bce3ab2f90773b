"""A rank within the group is given as the source, and it happens to be the global rank of another member.

`src` is a global rank; no rank notices where it names a member, and all members get the same wrong weights. Real gloo
does as requested.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def model_of(rank: int) -> torch.nn.Linear:
    """Each rank starts from weights of its own."""
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(model.weight, rank)
    return model


def alone(world_size: int) -> Snapshot:
    """The weights of the second worker."""
    return snapshot(model_of(2))


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["meta-pytorch/torchrec#4601"],
    tags=["raw", "groups", "oracle"],
    min_world_size=3,
    reference=alone,
)
def group_rank_names_another_member(rank: int) -> Snapshot:
    """The workers, all ranks but rank 0, take the weights of the second worker; rank 0 has them already."""
    workers = dist.new_group(list(range(1, dist.get_world_size())))
    model = model_of(rank or 2)
    if rank > 0:
        dist.broadcast(model.weight.detach(), src=1, group=workers)  # found here
    return snapshot(model)


@repairs(group_rank_names_another_member)
def repaired(rank: int) -> Snapshot:
    """`group_src` takes a rank within the group."""
    workers = dist.new_group(list(range(1, dist.get_world_size())))
    model = model_of(rank or 2)
    if rank > 0:
        dist.broadcast(model.weight.detach(), group_src=1, group=workers)
    return snapshot(model)
