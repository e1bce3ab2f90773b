"""Cases of the collectives that move data unchanged: broadcast, the gathers and scatters, all_to_all, barriers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from inspect import signature

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.sweep import Collective, Seat, Setting, blank, sample, settle, sweep, with_marks

# torch 2.13 renamed it and warns at the old name; 2.11 has only that.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

_BARRIER_TIMEOUT = {"timeout": timedelta(seconds=5)} if "timeout" in signature(dist.barrier).parameters else {}


def cases() -> Iterator[Case]:
    for collective in (BROADCAST, ALL_GATHER, ALL_GATHER_SINGLE, ALL_GATHER_COALESCED, SCATTER, ALL_TO_ALL):
        yield from sweep(collective)
    yield from with_marks(
        sweep(GATHER),
        # torch's Python layer views complex tensors as real for every collective but this one.
        gloo_refuses="Invalid scalar type",
        where=lambda case: "complex" in case.id,
    )
    yield from sweep(ALL_TO_ALL_SINGLE)
    yield from sweep(ALL_TO_ALL_SPLITS)
    yield from _old_names()
    yield from _roots()
    yield from _one_sided_splits()
    yield from _barriers()


def _broadcast(seat: Seat, setting: Setting) -> torch.Tensor:
    tensor = sample(setting, rank=seat.rank)
    settle(dist.broadcast(tensor, seat.root, group=seat.group, async_op=setting.is_async), setting)
    return tensor


def _broadcasted(seat: Seat, setting: Setting) -> torch.Tensor:
    return sample(setting, rank=seat.root)


def _all_gather(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    outputs = [blank(setting) for _ in seat.ranks]
    mine = sample(setting, rank=seat.rank)
    settle(dist.all_gather(outputs, mine, group=seat.group, async_op=setting.is_async), setting)
    return outputs


def _all_gathered(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    return [sample(setting, rank=rank) for rank in seat.ranks]


def _all_gather_single(seat: Seat, setting: Setting) -> torch.Tensor:
    output = blank(setting, (seat.size * setting.shape[0], *setting.shape[1:]))
    mine = sample(setting, rank=seat.rank)
    settle(all_gather_single(output, mine, group=seat.group, async_op=setting.is_async), setting)
    return output


def _all_gathered_single(seat: Seat, setting: Setting) -> torch.Tensor:
    return torch.cat(_all_gathered(seat, setting))


def _all_gather_coalesced(seat: Seat, setting: Setting) -> list[list[torch.Tensor]]:
    outputs = [[blank(setting), blank(setting, (2,))] for _ in seat.ranks]
    mine = [sample(setting, rank=seat.rank), sample(setting, rank=seat.rank, piece=1, shape=(2,))]
    # Async, it hands out a future where the other collectives hand out a work.
    future = dist.all_gather_coalesced(outputs, mine, group=seat.group, async_op=setting.is_async)
    assert (future is not None) == setting.is_async
    if future is not None:
        future.wait()
    return outputs


def _all_gathered_coalesced(seat: Seat, setting: Setting) -> list[list[torch.Tensor]]:
    return [[sample(setting, rank=rank), sample(setting, rank=rank, piece=1, shape=(2,))] for rank in seat.ranks]


def _gather(seat: Seat, setting: Setting) -> list[torch.Tensor] | None:
    outputs = [blank(setting) for _ in seat.ranks] if seat.rank == seat.root else None
    mine = sample(setting, rank=seat.rank)
    settle(dist.gather(mine, outputs, seat.root, group=seat.group, async_op=setting.is_async), setting)
    return outputs


def _gathered(seat: Seat, setting: Setting) -> list[torch.Tensor] | None:
    return _all_gathered(seat, setting) if seat.rank == seat.root else None


def _scatter(seat: Seat, setting: Setting) -> torch.Tensor:
    output = blank(setting)
    inputs = [sample(setting, rank=seat.root, piece=piece) for piece in range(seat.size)]
    handed_over = inputs if seat.rank == seat.root else None
    settle(dist.scatter(output, handed_over, seat.root, group=seat.group, async_op=setting.is_async), setting)
    return output


def _scattered(seat: Seat, setting: Setting) -> torch.Tensor:
    return sample(setting, rank=seat.root, piece=seat.index)


def _all_to_all(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    outputs = [blank(setting) for _ in seat.ranks]
    inputs = [sample(setting, rank=seat.rank, piece=piece) for piece in range(seat.size)]
    settle(dist.all_to_all(outputs, inputs, group=seat.group, async_op=setting.is_async), setting)
    return outputs


def _all_exchanged(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    return [sample(setting, rank=rank, piece=seat.index) for rank in seat.ranks]


def _all_to_all_single(seat: Seat, setting: Setting) -> torch.Tensor:
    inputs = torch.cat([sample(setting, rank=seat.rank, piece=piece) for piece in range(seat.size)])
    output = blank(setting, inputs.shape)
    settle(dist.all_to_all_single(output, inputs, group=seat.group, async_op=setting.is_async), setting)
    return output


def _all_exchanged_single(seat: Seat, setting: Setting) -> torch.Tensor:
    return torch.cat(_all_exchanged(seat, setting))


def _all_to_all_splits(seat: Seat, setting: Setting) -> torch.Tensor:
    # Member i sends i + j rows to member j, so the first sends none to itself.
    pieces = [_rows(seat, setting, source=seat.index, target=target) for target in range(seat.size)]
    inputs = torch.cat(pieces)
    splits = [len(piece) for piece in pieces]
    output = blank(setting, inputs.shape)
    settle(dist.all_to_all_single(output, inputs, splits, splits, group=seat.group, async_op=setting.is_async), setting)
    return output


def _all_exchanged_splits(seat: Seat, setting: Setting) -> torch.Tensor:
    return torch.cat([_rows(seat, setting, source=source, target=seat.index) for source in range(seat.size)])


def _rows(seat: Seat, setting: Setting, *, source: int, target: int) -> torch.Tensor:
    shape = (source + target, *setting.shape)
    return sample(setting, rank=seat.ranks[source], piece=target, shape=shape)


BROADCAST = Collective("broadcast", _broadcast, _broadcasted)
ALL_GATHER = Collective("all_gather", _all_gather, _all_gathered)
ALL_GATHER_SINGLE = Collective("all_gather_single", _all_gather_single, _all_gathered_single, takes_scalars=False)
ALL_GATHER_COALESCED = Collective("all_gather_coalesced", _all_gather_coalesced, _all_gathered_coalesced)
GATHER = Collective("gather", _gather, _gathered)
SCATTER = Collective("scatter", _scatter, _scattered)
ALL_TO_ALL = Collective("all_to_all", _all_to_all, _all_exchanged)
ALL_TO_ALL_SINGLE = Collective("all_to_all_single", _all_to_all_single, _all_exchanged_single, takes_scalars=False)
ALL_TO_ALL_SPLITS = Collective("all_to_all_single-splits", _all_to_all_splits, _all_exchanged_splits)


def _old_names() -> Iterator[Case]:
    for name in ("all_gather_into_tensor", "_all_gather_base"):

        def program(rank: int, name: str = name) -> torch.Tensor:
            output = torch.empty(6)
            getattr(dist, name)(output, sample(Setting(shape=(3,)), rank=rank))
            return output

        def expected(rank: int) -> torch.Tensor:
            return torch.cat([sample(Setting(shape=(3,)), rank=other) for other in range(2)])

        yield Case(f"{name}-old-name", 2, program, expected)


def _roots() -> Iterator[Case]:
    """Roots named by group rank, in a group whose ranks are not its members' global ones."""
    members = (0, 2, 3)
    for root in range(3):

        def program(rank: int, root: int = root) -> object:
            group = dist.new_group(list(members))
            if rank not in members:
                return None
            is_root = dist.get_rank(group) == root
            tensor = sample(Setting(), rank=rank)
            dist.broadcast(tensor, group=group, group_src=root)
            outputs = [blank(Setting()) for _ in members] if is_root else None
            dist.gather(sample(Setting(), rank=rank), outputs, group=group, group_dst=root)
            received = blank(Setting())
            dist.scatter(received, outputs, group=group, group_src=root)
            return [tensor, outputs, received]

        def expected(rank: int, root: int = root) -> object:
            if rank not in members:
                return None
            gathered = [sample(Setting(), rank=member) for member in members]
            return [gathered[root], gathered if rank == members[root] else None, sample(Setting(), rank=rank)]

        yield Case(f"broadcast-gather-scatter-group-root-{root}", 4, program, expected)

    def program_of_defaults(rank: int) -> object:
        outputs = [blank(Setting()) for _ in range(2)] if rank == 0 else None
        dist.gather(sample(Setting(), rank=rank), outputs)
        received = blank(Setting())
        dist.scatter(received, outputs)
        return [outputs, received]

    def expected_of_defaults(rank: int) -> object:
        gathered = [sample(Setting(), rank=other) for other in range(2)]
        return [gathered if rank == 0 else None, gathered[rank]]

    yield Case("gather-scatter-default-root", 2, program_of_defaults, expected_of_defaults)


def _one_sided_splits() -> Iterator[Case]:
    # Splits for one side only: the other side is cut evenly.
    def program(rank: int) -> list[torch.Tensor]:
        inputs = sample(Setting(shape=(4,)), rank=rank)
        outputs = [torch.empty(4), torch.empty(4)]
        dist.all_to_all_single(outputs[0], inputs, output_split_sizes=[2, 2])
        dist.all_to_all_single(outputs[1], inputs, input_split_sizes=[2, 2])
        return outputs

    def expected(rank: int) -> list[torch.Tensor]:
        halves = [sample(Setting(shape=(4,)), rank=other)[2 * rank : 2 * rank + 2] for other in range(2)]
        return [torch.cat(halves)] * 2

    yield Case("all_to_all_single-one-sided-splits", 2, program, expected)


def _barriers() -> Iterator[Case]:
    for world_size in (1, 2, 3, 4):
        for is_async in (False, True):
            setting = Setting(is_async=is_async)
            yield Case(
                f"barrier-{'async' if is_async else 'sync'}-world{world_size}",
                world_size,
                lambda rank, setting=setting: settle(dist.barrier(async_op=setting.is_async), setting),
                lambda rank: None,
            )
        yield Case(
            f"monitored_barrier-world{world_size}",
            world_size,
            lambda rank: dist.monitored_barrier(timeout=timedelta(seconds=5)),
            lambda rank: None,
        )

    def on_subgroup(rank: int) -> str | None:
        group = dist.new_group([1, 3])
        if rank not in (1, 3):
            return None
        dist.barrier(group, **_BARRIER_TIMEOUT)
        dist.barrier(group=group, async_op=True).wait()
        dist.monitored_barrier(group, timeout=timedelta(seconds=5), wait_all_ranks=True)
        return "passed"

    yield Case("barriers-subgroup", 4, on_subgroup, lambda rank: "passed" if rank in (1, 3) else None)
    yield Case("barrier-device_ids", 2, lambda rank: dist.barrier(device_ids=[0]), lambda rank: None)
