"""Groups that are made, used or addressed by other ranks than their members."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=0),
    reports=["pytorch/gloo#520"],
    tags=["groups", "teardown"],
    min_world_size=3,
)
def group_first_used_after_exit(rank: int) -> None:
    """A group is used for the first time when one of its ranks has returned already: the others wait for it.

    Nothing failed while it lived, as a group connects with its first call. Real gloo: the others get an error as
    its process has ended, or wait on beyond their time-out where connections are made lazily.
    """
    # Make a group for the end, and use it on all ranks but the first, which is done.
    closing = dist.new_group()  # found here
    if rank == 0:
        return
    dist.barrier(group=closing)


@repairs(group_first_used_after_exit)
def group_first_used_after_exit_repaired(rank: int) -> None:
    """Every rank of the group reaches its calls."""
    closing = dist.new_group()
    dist.barrier(group=closing)


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
    """A rank within the group is given as the source, and it happens to be the global rank of another member.

    `src` is a global rank; no rank notices where it names a member, and all members get the same wrong weights.
    Real gloo does as requested.
    """
    # The workers, all ranks but rank 0, take the weights of the second worker; rank 0 has them already.
    workers = dist.new_group(list(range(1, dist.get_world_size())))
    model = model_of(rank or 2)
    if rank > 0:
        dist.broadcast(model.weight.detach(), src=1, group=workers)  # found here
    return snapshot(model)


@repairs(group_rank_names_another_member)
def group_rank_names_another_member_repaired(rank: int) -> Snapshot:
    """`group_src` takes a rank within the group."""
    workers = dist.new_group(list(range(1, dist.get_world_size())))
    model = model_of(rank or 2)
    if rank > 0:
        dist.broadcast(model.weight.detach(), group_src=1, group=workers)
    return snapshot(model)


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["meta-pytorch/torchrec#4601", "pytorch/pytorch#74602", "pytorch/pytorch#149200", "radixark/miles#833"],
    tags=["raw", "groups"],
)
def group_rank_used_as_global_root(rank: int) -> object:
    """A rank within the group is given as the source: `src` is a global rank, and rank 0 is no member of this group.

    The caller means the first member. On real gloo, too, every member raises, and ranks that need them later wait
    forever.
    """
    # Share settings among all ranks but rank 0, which has a task of its own.
    members = list(range(1, dist.get_world_size()))
    workers = dist.new_group(members)
    if rank not in members:
        return None
    settings = [{"rate": 0.1} if rank == members[0] else None]
    dist.broadcast_object_list(settings, src=0, group=workers)  # found here
    return settings[0]


@repairs(group_rank_used_as_global_root)
def group_rank_used_as_global_root_repaired(rank: int) -> object:
    """`group_src` takes a rank within the group."""
    members = list(range(1, dist.get_world_size()))
    workers = dist.new_group(members)
    if rank not in members:
        return None
    settings = [{"rate": 0.1} if rank == members[0] else None]
    dist.broadcast_object_list(settings, group_src=0, group=workers)
    return settings[0]


@scenario(
    expected=finds(Code.MISMATCH_GROUP, ranks=1), reports=["pytorch/pytorch#25390"], tags=["groups"], min_world_size=3
)
def new_group_called_by_members_only(rank: int) -> None:
    """Only its members make a group: they do without the others, but on those the next group goes by another number.

    torch names a group by how many the rank has made before, and ranks meet by that name. Real gloo makes the first
    group, and all ranks hang in the next `new_group`, past any time-out.
    """
    members = [other for other in range(dist.get_world_size()) if other != 1]
    if rank in members:
        dist.new_group(members)
    everybody = dist.new_group()  # found here
    dist.all_reduce(torch.ones(1), group=everybody)


@repairs(new_group_called_by_members_only)
def new_group_called_by_members_only_repaired(rank: int) -> None:
    """Every rank makes both groups, in one order."""
    members = [other for other in range(dist.get_world_size()) if other != 1]
    dist.new_group(members)
    everybody = dist.new_group()
    dist.all_reduce(torch.ones(1), group=everybody)


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=1),
    reports=["cornstarch-org/Cornstarch#76", "vllm-project/llm-compressor#2869", "pytorch/pytorch#25390"],
    tags=["groups"],
)
def new_group_not_called_by_everyone(rank: int) -> None:
    """A group of all ranks is made where it is first used, and one rank never gets there: the others wait in `new_group`.

    Making a group takes all its members at once. On real gloo those in `new_group` hang past any time-out of the
    group, and the rank that went on times out in its barrier.
    """
    # Add up warnings over a group of their own, then meet; rank 1 has none to report.
    has_warnings = rank != 1
    if has_warnings:
        metrics = dist.new_group()
        dist.all_reduce(torch.ones(1), group=metrics)
    dist.barrier()  # found here


@repairs(new_group_not_called_by_everyone)
def new_group_not_called_by_everyone_repaired(rank: int) -> None:
    """Every rank makes the group at the start, and brings a zero where it has nothing to report."""
    has_warnings = rank != 1
    metrics = dist.new_group()
    dist.all_reduce(torch.ones(1) if has_warnings else torch.zeros(1), group=metrics)
    dist.barrier()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=(0, 1)),
    reports=["pytorch/pytorch#155680"],
    tags=["groups", "checkpoint"],
    min_world_size=4,
    max_world_size=4,
)
def state_broadcast_from_outside_the_group(rank: int) -> None:
    """The ranks of a second replica load optimizer state by a broadcast from rank 0, which is not among those who call it.

    The group was left out, so the default group is used, and its other ranks never come. Real gloo: the others get
    an error as their peers end, or time out.
    """
    # Load a state in the group of ranks 2 and 3.
    dist.new_group([2, 3])
    if rank in (2, 3):
        dist.broadcast_object_list([{"step": 1}], src=0)  # found here


@repairs(state_broadcast_from_outside_the_group)
def state_broadcast_from_outside_the_group_repaired(rank: int) -> None:
    """The group and its first rank are named."""
    replica = dist.new_group([2, 3])
    if rank in (2, 3):
        dist.broadcast_object_list([{"step": 1}], group_src=0, group=replica)
