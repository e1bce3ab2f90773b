"""Cases of process groups: new_group and its relatives, what a group says of itself, device meshes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.semantics.case import Case


def cases() -> Iterator[Case]:
    for world_size in (1, 2, 4):
        yield Case(f"default-group-world{world_size}", world_size, _default_group, _default_group_of(world_size))
    yield Case("new_group-membership", 3, _membership, _expected_membership)
    yield Case("new_group-of-all", 3, _of_all, lambda rank: [True, rank, [0, 1, 2], _number(6)])
    yield Case("new_group-sorts-ranks", 4, _unsorted, lambda rank: [{0: 0, 1: 1, 3: 2}.get(rank, -1), [0, 1, 3]])
    yield Case("new_group-single-ranks", 3, _single_ranks, lambda rank: [[0] if rank == 1 else [], _number(rank + 1)])
    yield Case("new_group-names", 4, _names, lambda rank: [2, True, ["one", "undefined"]])
    yield Case("new_group-same-ranks-twice", 2, _same_ranks, lambda rank: [True, _number(3), _number(2)])
    yield Case("new_group-overlapping", 4, _overlapping, _expected_overlapping)
    yield Case("new_group-local-synchronization", 4, _locally, lambda rank: _number(6) if rank in (1, 3) else None)
    yield Case(
        "new_group-rank-translation", 4, _translation, lambda rank: [[1, 3], [0, 1], [1, 3]] if rank in (1, 3) else None
    )
    yield Case(
        "new_group-non-member-calls", 3, _non_member, lambda rank: [None] * 5 + [-1, -1, -1] if rank == 1 else None
    )
    yield Case("destroy-subgroup", 4, _destroyed, lambda rank: [_number(10), _number(6) if rank in (1, 3) else None])
    yield Case("new_group-after-destroy", 2, _again, lambda rank: [_number(3)] * 3)
    yield Case("new_subgroups", 4, _subgroups, _expected_subgroups)
    yield Case("new_subgroups_by_enumeration", 4, _enumerated, _expected_enumerated)
    yield Case("new_subgroups_by_enumeration-left-out", 3, _left_out, lambda rank: _number(3) if rank < 2 else None)
    yield Case("init_device_mesh-one-dimension", 4, _line, _expected_line)
    yield Case("init_device_mesh-two-dimensions", 4, _square, _expected_square)
    yield Case("init_device_mesh-flatten", 4, _flattened, lambda rank: [[0, 1, 2, 3], _number(10)])


def _number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


def _total(rank: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of rank + 1 over the group's members, by all_reduce."""
    tensor = _number(rank + 1)
    dist.all_reduce(tensor, group=group)
    return tensor


def _default_group(rank: int) -> dict[str, object]:
    group = dist.group.WORLD
    return {
        "initialized": dist.is_initialized(),
        "is a ProcessGroup": isinstance(group, dist.ProcessGroup),
        "rank": [dist.get_rank(), group.rank(), dist.get_rank(group)],
        "size": [dist.get_world_size(), group.size(), dist.get_world_size(group)],
        "ranks": dist.get_process_group_ranks(group),
        # monitored_barrier and torch.distributed.nn ask for this name.
        "backend": dist.get_backend() == dist.Backend.GLOO,
        "desc": group.group_desc,
    }


def _default_group_of(world_size: int) -> Callable[[int], dict[str, object]]:
    return lambda rank: {
        "initialized": True,
        "is a ProcessGroup": True,
        "rank": [rank] * 3,
        "size": [world_size] * 3,
        "ranks": list(range(world_size)),
        "backend": True,
        "desc": "default_pg",
    }


def _membership(rank: int) -> list[object]:
    group = dist.new_group([0, 2])
    return [group is dist.GroupMember.NON_GROUP_MEMBER, dist.get_rank(group), dist.get_world_size(group)]


def _expected_membership(rank: int) -> list[object]:
    return [True, -1, -1] if rank == 1 else [False, rank // 2, 2]


def _of_all(rank: int) -> list[object]:
    group = dist.new_group()
    ranks = dist.get_process_group_ranks(group)
    return [group is not dist.group.WORLD, dist.get_rank(group), ranks, _total(rank, group)]


def _unsorted(rank: int) -> list[object]:
    group = dist.new_group([3, 0, 1])
    return [dist.get_rank(group), dist.get_process_group_ranks(group)]


def _single_ranks(rank: int) -> list[object]:
    groups = [dist.new_group([member]) for member in range(3)]
    gathered: list[int] = []
    if rank == 1:
        numbers = [torch.empty(1, dtype=torch.int64)]
        dist.all_gather(numbers, torch.zeros(1, dtype=torch.int64), group=groups[1])
        gathered = [int(number) for number in numbers]
    return [gathered, _total(rank, groups[rank])]


def _names(rank: int) -> list[object]:
    groups = [dist.new_group([0, 1, 2, 3], group_desc="one"), dist.new_group([0, 1, 2, 3])]
    names = [group.group_name for group in groups]
    everywhere: list[object] = [None] * 4
    dist.all_gather_object(everywhere, names)
    return [len(set(names)), everywhere == [names] * 4, [group.group_desc for group in groups]]


def _same_ranks(rank: int) -> list[object]:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    # The two do not see each other's calls, and finish in any order.
    total, greatest = _number(rank + 1), _number(rank + 1)
    works = [
        dist.all_reduce(total, group=first, async_op=True),
        dist.all_reduce(greatest, dist.ReduceOp.MAX, group=second, async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    return [first != second, total, greatest]


def _overlapping(rank: int) -> list[torch.Tensor | None]:
    members = [[0, 1], [1, 2], [2, 3]]
    groups = [dist.new_group(ranks) for ranks in members]
    return [_total(rank, group) if rank in ranks else None for ranks, group in zip(members, groups, strict=True)]


def _expected_overlapping(rank: int) -> list[torch.Tensor | None]:
    return [_number(2 * first + 3) if rank in (first, first + 1) else None for first in range(3)]


def _locally(rank: int) -> torch.Tensor | None:
    # Only the members call.
    if rank not in (1, 3):
        return None
    return _total(rank, dist.new_group([1, 3], use_local_synchronization=True))


def _translation(rank: int) -> list[list[int]] | None:
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return None
    return [
        dist.get_process_group_ranks(group),
        [dist.get_group_rank(group, member) for member in (1, 3)],
        [dist.get_global_rank(group, member) for member in (0, 1)],
    ]


def _non_member(rank: int) -> list[object] | None:
    group = dist.new_group([0, 2])
    if rank != 1:
        return None
    tensor = torch.ones(1)
    # Each of these warns and does nothing.
    return [
        dist.all_reduce(tensor, group=group),
        dist.all_reduce(tensor, group=group, async_op=True),
        dist.barrier(group=group),
        dist.all_gather([tensor, tensor], tensor, group=group),
        dist.irecv(tensor, 0, group=group),
        dist.recv(tensor, 0, group=group),
        dist.get_rank(group),
        dist.get_world_size(group),
    ]


def _destroyed(rank: int) -> list[object]:
    group = dist.new_group([1, 3])
    total = _total(rank, group) if rank in (1, 3) else None
    dist.destroy_process_group(group)
    return [_total(rank), total]


def _again(rank: int) -> list[torch.Tensor]:
    totals = []
    for _ in range(3):
        group = dist.new_group([0, 1])
        totals.append(_total(rank, group))
        dist.destroy_process_group(group)
    return totals


def _subgroups(rank: int) -> list[object]:
    mine, every = dist.new_subgroups(2)
    members = [group is not dist.GroupMember.NON_GROUP_MEMBER for group in every]
    return [dist.get_process_group_ranks(mine), dist.get_rank(mine), members, _total(rank, mine)]


def _expected_subgroups(rank: int) -> list[object]:
    first = rank < 2
    return [[0, 1] if first else [2, 3], rank % 2, [first, not first], _number(3 if first else 7)]


def _enumerated(rank: int) -> list[object]:
    mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return [dist.get_process_group_ranks(mine), _total(rank, mine)]


def _expected_enumerated(rank: int) -> list[object]:
    return [[0, 3] if rank in (0, 3) else [1, 2], _number(5)]


def _left_out(rank: int) -> torch.Tensor | None:
    mine, _ = dist.new_subgroups_by_enumeration([[0, 1]])
    return None if mine is None else _total(rank, mine)


def _line(rank: int) -> list[object]:
    mesh = init_device_mesh("cpu", (4,))
    group = mesh.get_group()
    return [mesh.size(), mesh.get_local_rank(), list(mesh.get_coordinate()), group.size(), _total(rank, group)]


def _expected_line(rank: int) -> list[object]:
    return [4, rank, [rank], 4, _number(10)]


def _square(rank: int) -> list[object]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    values: list[object] = [list(mesh.get_coordinate())]
    for name in ("data", "tensor"):
        submesh: DeviceMesh = mesh[name]
        group = mesh.get_group(name)
        assert submesh.get_group() is group
        values.append([dist.get_process_group_ranks(group), submesh.get_local_rank(), _total(rank, group)])
    return values


def _expected_square(rank: int) -> list[object]:
    row, column = divmod(rank, 2)
    return [
        [row, column],
        [[column, column + 2], row, _number(2 * column + 4)],
        [[2 * row, 2 * row + 1], column, _number(4 * row + 3)],
    ]


def _flattened(rank: int) -> list[object]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    group = mesh["data", "tensor"]._flatten("all").get_group()
    return [dist.get_process_group_ranks(group), _total(rank, group)]
