"""Cases of the object collectives: Python objects, pickled to tensors of other sizes on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tests.semantics.case import Case

SUBGROUP = (1, 3)


@dataclass
class Parcel:
    """An object of a class of its own."""

    rank: int
    content: list[int]


def cases() -> Iterator[Case]:
    for world_size in (1, 2, 3, 4):
        everything = [_object(rank) for rank in range(world_size)]
        last = world_size - 1
        yield Case(
            f"all_gather_object-world{world_size}", world_size, _all_gather, lambda rank, every=everything: every
        )
        yield Case(
            f"gather_object-world{world_size}",
            world_size,
            _gather,
            lambda rank, every=everything, last=last: every if rank == last else None,
        )
        yield Case(
            f"broadcast_object_list-world{world_size}",
            world_size,
            _broadcast,
            lambda rank, last=last: [_object(last), "from", last],
        )
        yield Case(f"scatter_object_list-world{world_size}", world_size, _scatter, lambda rank: [_object(rank)])
    yield Case(
        "object-default-roots", 2, _default_roots, lambda rank: [[["of 0"], ["of 1"]] if rank == 0 else None, "of 0"]
    )
    yield Case("broadcast_object_list-single", 2, _broadcast_single, lambda rank: [None])
    for use_batch in (False, True):
        yield Case(
            f"send-recv_object_list-{'batch' if use_batch else 'plain'}",
            2,
            lambda rank, use_batch=use_batch: _send(rank, use_batch=use_batch),
            lambda rank: [[], [0, [_object(0), None, "end"]]][rank],
        )
    yield Case("objects-subgroup", 4, _on_subgroup, _expected_on_subgroup)
    yield Case(
        "send-recv_object_list-subgroup", 4, _send_on_subgroup, lambda rank: [3, [_object(3)]] if rank == 1 else None
    )


def _object(rank: int) -> object:
    """Another kind and another size for every rank."""
    return [
        {"rank": 0, "nested": ({"empty": []}, None)},
        "text " * 200,
        Parcel(rank=2, content=list(range(50))),
        torch.arange(4.0),
    ][rank]


def _all_gather(rank: int) -> list[object]:
    objects: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, _object(rank))
    return objects


def _gather(rank: int) -> list[object] | None:
    last = dist.get_world_size() - 1
    objects: list[object] | None = [None] * dist.get_world_size() if rank == last else None
    dist.gather_object(_object(rank), objects, dst=last)
    return objects


def _broadcast(rank: int) -> list[object]:
    last = dist.get_world_size() - 1
    objects = [_object(last), "from", last] if rank == last else [None] * 3
    dist.broadcast_object_list(objects, src=last)
    return objects


def _scatter(rank: int) -> list[object]:
    last = dist.get_world_size() - 1
    received: list[object] = [None]
    dist.scatter_object_list(
        received, [_object(other) for other in range(last + 1)] if rank == last else None, src=last
    )
    return received


def _default_roots(rank: int) -> list[object]:
    gathered: list[object] | None = [None, None] if rank == 0 else None
    dist.gather_object([f"of {rank}"], gathered)
    objects = [f"of {rank}"]
    dist.broadcast_object_list(objects)
    received: list[object] = [None]
    dist.scatter_object_list(received, ["of 0", "of 0"] if rank == 0 else None)
    assert received == objects
    return [gathered, objects[0]]


def _broadcast_single(rank: int) -> list[object]:
    objects: list[object] = [None] if rank == 0 else ["something else"]
    dist.broadcast_object_list(objects, src=0)
    return objects


def _send(rank: int, *, use_batch: bool) -> list[object]:
    if rank == 0:
        dist.send_object_list([_object(0), None, "end"], 1, use_batch=use_batch)
        return []
    received: list[object] = [0, 0, 0]
    source = dist.recv_object_list(received, 0, use_batch=use_batch)
    return [source, received]


def _on_subgroup(rank: int) -> list[object] | None:
    group = dist.new_group(list(SUBGROUP))
    if rank not in SUBGROUP:
        return None
    everything: list[object] = [None, None]
    dist.all_gather_object(everything, _object(rank), group=group)
    gathered: list[object] | None = [None, None] if rank == 3 else None
    dist.gather_object(_object(rank), gathered, group=group, group_dst=1)
    announced = [_object(rank)]
    dist.broadcast_object_list(announced, src=3, group=group)
    received: list[object] = [None]
    dist.scatter_object_list(received, [_object(1), _object(3)] if rank == 3 else None, group=group, group_src=1)
    return [everything, gathered, announced, received]


def _expected_on_subgroup(rank: int) -> list[object] | None:
    if rank not in SUBGROUP:
        return None
    everything = [_object(1), _object(3)]
    return [everything, everything if rank == 3 else None, [_object(3)], [_object(rank)]]


def _send_on_subgroup(rank: int) -> list[object] | None:
    group = dist.new_group(list(SUBGROUP))
    if rank == 3:
        dist.send_object_list([_object(3)], group=group, group_dst=0)
    if rank != 1:
        return None
    received: list[object] = [None]
    return [dist.recv_object_list(received, 3, group=group), received]
