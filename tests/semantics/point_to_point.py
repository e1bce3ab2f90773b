"""Cases between two ranks: send and recv in all their forms, tags, order, any source, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.sweep import DTYPES, SHAPES, Setting, blank, dtype_name, sample, shape_name

BYTES_ONLY = (torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)
"""Dtypes that gloo moves from rank to rank, though its collectives refuse them."""

SETTING = Setting(shape=(3,))
SUBGROUP = [1, 3]


def cases() -> Iterator[Case]:
    for dtype in DTYPES + BYTES_ONLY:
        yield _sent(Setting(dtype=dtype, shape=(3,)), name=dtype_name(dtype))
    for shape in SHAPES:
        yield _sent(Setting(shape=shape), name=shape_name(shape))
    for world_size in (2, 3, 4):
        yield Case(f"send-recv-pipeline-world{world_size}", world_size, _pipeline, _running_sum)
        for name, program in (("isend-irecv", _ring), ("batch_isend_irecv", _batched_ring)):
            yield Case(f"{name}-ring-world{world_size}", world_size, program, _left_neighbour_of(world_size))
    yield Case("send-recv-returns", 2, _returns, lambda rank: [None, 0][rank])
    yield Case("isend-irecv-exchange", 2, _exchange, lambda rank: [[True, True], _number(1 - rank)])
    yield Case("isend-incomplete-until-recv", 2, _incomplete, lambda rank: [[False, True], None][rank])
    yield Case("send-recv-tags-out-of-order", 2, _tags, lambda rank: [[], [_number(2), _number(1)]][rank])
    yield Case("isend-irecv-same-tag-in-order", 2, _same_tag, lambda rank: [[], _numbers(5)][rank])
    yield Case("recv-any-source", 4, _any_source, lambda rank: [[1, 1.0], [2, 2.0], [3, 3.0]] if rank == 0 else [])
    yield Case("recv-any-source-by-tag", 3, _any_source_by_tag, lambda rank: [2, 1] if rank == 0 else [])
    yield Case("recv-any-source-keeps-order", 2, _any_source_order, lambda rank: [_numbers(3), []][rank])
    yield Case("irecv-source-rank", 3, _source_ranks, lambda rank: [[-1, 2], [-1, 1]] if rank == 0 else [])
    yield Case("send-recv-subgroup", 4, _on_subgroup, lambda rank: [3, _number(7)] if rank == 1 else None)
    yield Case("recv-any-source-subgroup", 4, _any_on_subgroup, lambda rank: [3, 1] if rank == 1 else None)
    yield Case(
        "batch_isend_irecv-subgroup", 4, _batch_on_subgroup, lambda rank: {1: _number(3), 3: _number(1)}.get(rank)
    )
    yield Case("batch_isend_irecv-several-per-peer", 2, _batch_of_many, lambda rank: _numbers(3, start=10 * (1 - rank)))
    yield Case("send-recv-into-view", 2, _into_view, _with_first_row_of_rank_0)
    yield Case("send-recv-between-collectives", 3, _between_collectives, lambda rank: [_number(6), _number(18)])


def _number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


def _numbers(count: int, *, start: int = 0) -> list[torch.Tensor]:
    return [_number(start + value) for value in range(count)]


def _sent(setting: Setting, *, name: str) -> Case:
    def comparable(tensor: torch.Tensor) -> torch.Tensor:
        # These dtypes cannot be compared as numbers.
        return tensor.view(torch.uint8) if setting.dtype in BYTES_ONLY else tensor

    def program(rank: int) -> torch.Tensor:
        tensor = sample(setting, rank=0) if rank == 0 else blank(setting)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        return comparable(tensor)

    return Case(f"send-recv-{name}", 2, program, lambda rank: comparable(sample(setting, rank=0)))


def _pipeline(rank: int) -> torch.Tensor:
    tensor = sample(SETTING, rank=rank)
    if rank > 0:
        received = torch.empty(3)
        dist.recv(received, rank - 1)
        tensor += received
    if rank < dist.get_world_size() - 1:
        dist.send(tensor, rank + 1)
    return tensor


def _running_sum(rank: int) -> torch.Tensor:
    return torch.stack([sample(SETTING, rank=other) for other in range(rank + 1)]).sum(dim=0)


def _ring(rank: int) -> list[object]:
    size = dist.get_world_size()
    received = torch.empty(3)
    sending = dist.isend(sample(SETTING, rank=rank), (rank + 1) % size)
    receiving = dist.irecv(received, (rank - 1) % size)
    return [[sending.wait(), receiving.wait()], received]


def _batched_ring(rank: int) -> list[object]:
    size = dist.get_world_size()
    received = torch.empty(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
            dist.P2POp(dist.isend, sample(SETTING, rank=rank), (rank + 1) % size),
        ]
    )
    return [[work.wait() for work in works], received]


def _left_neighbour_of(world_size: int) -> Callable[[int], list[object]]:
    return lambda rank: [[True, True], sample(SETTING, rank=(rank - 1) % world_size)]


def _returns(rank: int) -> int | None:
    tensor = sample(SETTING, rank=rank)
    return dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)


def _exchange(rank: int) -> list[object]:
    received = torch.empty(1)
    receiving = dist.irecv(received, 1 - rank)
    sending = dist.isend(_number(rank), 1 - rank)
    return [[receiving.wait(), sending.wait()], received]


def _incomplete(rank: int) -> list[bool] | None:
    # Rank 1 comes to the large one only after rank 0 has looked.
    large, token = torch.ones(1000), torch.zeros(1)
    if rank == 1:
        dist.recv(token, 0)
        dist.recv(large, 0, tag=1)
        return None
    work = dist.isend(large, 1, tag=1)
    early = work.is_completed()
    dist.send(token, 1)
    work.wait()
    return [early, work.is_completed()]


def _tags(rank: int) -> list[torch.Tensor]:
    if rank == 0:
        works = [dist.isend(_number(tag), 1, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
        return []
    received = [torch.empty(1), torch.empty(1)]
    dist.recv(received[0], 0, tag=2)
    dist.recv(received[1], 0, tag=1)
    return received


def _same_tag(rank: int) -> list[torch.Tensor]:
    if rank == 0:
        works = [dist.isend(number, 1) for number in _numbers(5)]
        for work in works:
            work.wait()
        return []
    received = [torch.empty(1) for _ in range(5)]
    works = [dist.irecv(tensor, 0) for tensor in received]
    # The order of the calls pairs them, not the order of the waits.
    for work in reversed(works):
        work.wait()
    return received


def _any_source(rank: int) -> list[list[float]]:
    if rank > 0:
        dist.send(_number(rank), 0)
        return []
    arrivals = []
    for _ in range(3):
        tensor = torch.empty(1)
        arrivals.append([dist.recv(tensor), tensor.item()])
    return sorted(arrivals)


def _any_source_by_tag(rank: int) -> list[int]:
    if rank > 0:
        dist.send(_number(rank), 0, tag=rank)
        return []
    return [dist.recv(torch.empty(1), tag=tag) for tag in (2, 1)]


def _any_source_order(rank: int) -> list[torch.Tensor]:
    if rank == 1:
        works = [dist.isend(number, 0) for number in _numbers(3)]
        for work in works:
            work.wait()
        return []
    received = [torch.empty(1) for _ in range(3)]
    for tensor in received:
        dist.recv(tensor)
    return received


def _source_ranks(rank: int) -> list[list[int]]:
    # Each sender waits until rank 0 has asked too early.
    if rank > 0:
        dist.recv(torch.empty(1), 0, tag=10)
        dist.send(_number(rank), 0, tag=rank)
        return []
    sources = []
    for peer, work in ((2, dist.irecv(torch.empty(1), 2, tag=2)), (1, dist.irecv(torch.empty(1), tag=1))):
        early = work._source_rank()
        dist.send(torch.zeros(1), peer, tag=10)
        work.wait()
        sources.append([early, work._source_rank()])
    return sources


def _on_subgroup(rank: int) -> list[object] | None:
    group = dist.new_group(SUBGROUP)
    if rank == 3:
        dist.send(_number(7), 1, group=group)
        dist.send(_number(7), group_dst=0, group=group, tag=1)
    if rank != 1:
        return None
    received = torch.empty(1)
    # Both return the global rank.
    source = dist.recv(received, 3, group=group)
    assert source == dist.recv(received, group_src=1, group=group, tag=1)
    return [source, received]


def _any_on_subgroup(rank: int) -> list[int] | None:
    group = dist.new_group(SUBGROUP)
    if rank == 3:
        dist.send(_number(7), 1, group=group)
        dist.send(_number(7), 1, group=group)
    if rank != 1:
        return None
    # recv returns the global rank; its work knows the group rank.
    source = dist.recv(torch.empty(1), group=group)
    work = dist.irecv(torch.empty(1), group=group)
    work.wait()
    return [source, work._source_rank()]


def _batch_on_subgroup(rank: int) -> torch.Tensor | None:
    group = dist.new_group(SUBGROUP)
    if rank not in SUBGROUP:
        return None
    received = torch.empty(1)
    peer = 1 - dist.get_rank(group)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, _number(rank), SUBGROUP[peer], group=group),
            dist.P2POp(dist.irecv, received, group=group, group_peer=peer),
        ]
    )
    for work in works:
        work.wait()
    return received


def _batch_of_many(rank: int) -> list[torch.Tensor]:
    received = [torch.empty(1) for _ in range(3)]
    sends = [dist.P2POp(dist.isend, number, 1 - rank) for number in _numbers(3, start=10 * rank)]
    receives = [dist.P2POp(dist.irecv, tensor, 1 - rank) for tensor in received]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait()
    return received


def _into_view(rank: int) -> torch.Tensor:
    matrix = sample(Setting(), rank=rank)
    if rank == 0:
        dist.send(matrix[0], 1)
    else:
        dist.recv(matrix[1], 0)
    return matrix


def _with_first_row_of_rank_0(rank: int) -> torch.Tensor:
    matrix = sample(Setting(), rank=rank)
    if rank == 1:
        matrix[1] = sample(Setting(), rank=0)[0]
    return matrix


def _between_collectives(rank: int) -> list[torch.Tensor]:
    first = _number(rank + 1)
    dist.all_reduce(first)
    passed_on = first.clone()
    if rank == 0:
        dist.send(passed_on, 1)
    elif rank == 1:
        dist.recv(passed_on, 0)
    dist.all_reduce(passed_on)
    return [first, passed_on]
