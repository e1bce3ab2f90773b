"""Cases of several calls at a time: in flight together, on several groups, mixed with point-to-point."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.sweep import Setting, reduced, sample


def cases() -> Iterator[Case]:
    for world_size in (2, 4):
        yield Case(
            f"sequence-many-in-flight-world{world_size}",
            world_size,
            _many_in_flight,
            lambda rank, size=world_size: [_number(sum(range(size)) * step + size) for step in range(20)],
        )
    yield Case("sequence-other-collectives-in-flight", 3, _others_in_flight, _expected_others_in_flight)
    yield Case("sequence-groups-in-turn", 4, _groups_in_turn, lambda rank: _number([1, 2, 2, 1][rank] * 6.0))
    yield Case("sequence-two-groups-in-flight", 4, _two_groups_in_flight, _expected_two_groups_in_flight)
    yield Case(
        "sequence-point-to-point-around-collective", 3, _around_collective, lambda rank: _number(3 + (rank - 1) % 3)
    )


def _number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


def _many_in_flight(rank: int) -> list[torch.Tensor]:
    tensors = [_number(rank * step + 1) for step in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return tensors


def _others_in_flight(rank: int) -> list[object]:
    setting = Setting(shape=(3,))
    total, announced = sample(setting, rank=rank), sample(setting, rank=rank)
    copies = [torch.empty(3) for _ in range(3)]
    works = [
        dist.all_reduce(total, async_op=True),
        dist.all_gather(copies, sample(setting, rank=rank), async_op=True),
        dist.barrier(async_op=True),
        dist.broadcast(announced, 2, async_op=True),
    ]
    for index in (2, 0, 3, 1):
        works[index].wait()
    return [total, copies, announced]


def _expected_others_in_flight(rank: int) -> list[object]:
    inputs = [sample(Setting(shape=(3,)), rank=other) for other in range(3)]
    return [reduced("SUM", inputs), inputs, inputs[2]]


def _groups_in_turn(rank: int) -> torch.Tensor:
    # Outer ranks and inner ranks each have a group; the world comes in between.
    outer, inner = dist.new_group([0, 3]), dist.new_group([1, 2])
    mine, tensor = (outer, _number(1)) if rank in (0, 3) else (inner, _number(2))
    everyone = _number(1)
    dist.all_reduce(everyone)
    dist.all_reduce(tensor, group=mine)
    dist.all_reduce(everyone, dist.ReduceOp.MAX)
    return tensor + everyone * _number([1, 2, 2, 1][rank])


def _two_groups_in_flight(rank: int) -> list[torch.Tensor]:
    left, right = dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])
    tensors, works = [], []
    for group, members in ((left, (0, 1, 2)), (right, (1, 2, 3))):
        if rank in members:
            tensors.append(_number(rank + 1))
            works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
    for work in reversed(works):
        work.wait()
    return tensors


def _expected_two_groups_in_flight(rank: int) -> list[torch.Tensor]:
    return [_number(total) for total, members in ((6, (0, 1, 2)), (9, (1, 2, 3))) if rank in members]


def _around_collective(rank: int) -> torch.Tensor:
    received, total = torch.empty(1), _number(1)
    receiving = dist.irecv(received, (rank - 1) % 3)
    work = dist.all_reduce(total, async_op=True)
    sending = dist.isend(_number(rank), (rank + 1) % 3)
    for each in (sending, work, receiving):
        each.wait()
    return total + received
