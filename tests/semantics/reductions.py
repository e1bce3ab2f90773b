"""Cases of the collectives that reduce: all_reduce, reduce, reduce_scatter and their relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.sweep import (
    DTYPES,
    Collective,
    Seat,
    Setting,
    blank,
    reduce_operation,
    reduced,
    sample,
    settle,
    sweep,
    world_case,
)

# torch 2.13 renamed it and warns at the old name; 2.11 has only that.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGRAL = (torch.int8, torch.uint8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
REDUCTION_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "SUM": DTYPES,
    "AVG": FLOATING + COMPLEX,
    "PRODUCT": (*FLOATING, *INTEGRAL, torch.bool),
    "MIN": (*FLOATING, *INTEGRAL, torch.bool),
    "MAX": (*FLOATING, *INTEGRAL, torch.bool),
    "BAND": (*INTEGRAL, torch.bool),
    "BOR": (*INTEGRAL, torch.bool),
    "BXOR": (*INTEGRAL, torch.bool),
    "PREMUL_SUM": FLOATING,
}
"""The dtypes each reduction is defined for; what the others end in stands in argument_errors.py."""


def cases() -> Iterator[Case]:
    for collective in (ALL_REDUCE, ALL_REDUCE_COALESCED, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_SINGLE):
        yield from sweep(collective)
        yield from _reductions(collective)
    yield from _uneven_reduce_scatters()
    yield from _fractions()
    yield from _old_names()
    yield from _roots()
    yield from _sparse()


def _reductions(collective: Collective) -> Iterator[Case]:
    for reduction, dtypes in REDUCTION_DTYPES.items():
        if reduction == "SUM":
            continue
        # all_reduce shows every dtype; the others go through the same arithmetic.
        for dtype in dtypes if collective is ALL_REDUCE else dtypes[:1]:
            yield world_case(
                collective,
                Setting(dtype=dtype, reduction=reduction, shape=(7,)),
                world_size=3,
                gloo_refuses="Cannot use ReduceOp.PREMUL_SUM with Gloo" if reduction == "PREMUL_SUM" else None,
            )
        yield world_case(
            collective,
            Setting(dtype=dtypes[0], reduction=reduction, shape=(7,), is_async=True),
            world_size=4,
            gloo_refuses="Cannot use ReduceOp.PREMUL_SUM with Gloo" if reduction == "PREMUL_SUM" else None,
        )


def _all_reduce(seat: Seat, setting: Setting) -> torch.Tensor:
    tensor = sample(setting, rank=seat.rank)
    operation = reduce_operation(setting.reduction)
    settle(dist.all_reduce(tensor, operation, group=seat.group, async_op=setting.is_async), setting)
    return tensor


def _all_reduced(seat: Seat, setting: Setting) -> torch.Tensor:
    return reduced(setting.reduction, [sample(setting, rank=rank) for rank in seat.ranks])


def _all_reduce_coalesced(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    tensors = [sample(setting, rank=seat.rank), sample(setting, rank=seat.rank, piece=1, shape=(2,))]
    operation = reduce_operation(setting.reduction)
    # Async, it hands out a future where the other collectives hand out a work.
    future = dist.all_reduce_coalesced(tensors, operation, group=seat.group, async_op=setting.is_async)
    assert (future is not None) == setting.is_async
    if future is not None:
        future.wait()
    return tensors


def _all_reduced_coalesced(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    return [
        reduced(setting.reduction, [sample(setting, rank=rank, piece=piece, shape=shape) for rank in seat.ranks])
        for piece, shape in enumerate((setting.shape, (2,)))
    ]


def _reduce(seat: Seat, setting: Setting) -> torch.Tensor | None:
    tensor = sample(setting, rank=seat.rank)
    operation = reduce_operation(setting.reduction)
    settle(dist.reduce(tensor, seat.root, operation, group=seat.group, async_op=setting.is_async), setting)
    # Elsewhere the tensor is scratch space: gloo leaves partial sums in it.
    return tensor if seat.rank == seat.root else None


def _reduced_at_root(seat: Seat, setting: Setting) -> torch.Tensor | None:
    return _all_reduced(seat, setting) if seat.rank == seat.root else None


def _reduce_scatter(seat: Seat, setting: Setting) -> list[object]:
    inputs = [sample(setting, rank=seat.rank, piece=piece) for piece in range(seat.size)]
    output = blank(setting)
    operation = reduce_operation(setting.reduction)
    settle(dist.reduce_scatter(output, inputs, operation, group=seat.group, async_op=setting.is_async), setting)
    return [output, inputs]


def _reduce_scattered(seat: Seat, setting: Setting) -> list[object]:
    return [
        reduced(setting.reduction, [sample(setting, rank=rank, piece=seat.index) for rank in seat.ranks]),
        [sample(setting, rank=seat.rank, piece=piece) for piece in range(seat.size)],
    ]


def _reduce_scatter_single(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    whole = _whole(seat, setting, rank=seat.rank)
    output = blank(setting)
    operation = reduce_operation(setting.reduction)
    settle(reduce_scatter_single(output, whole, operation, group=seat.group, async_op=setting.is_async), setting)
    return [output, whole]


def _reduce_scattered_single(seat: Seat, setting: Setting) -> list[torch.Tensor]:
    whole = reduced(setting.reduction, [_whole(seat, setting, rank=rank) for rank in seat.ranks])
    start = seat.index * setting.shape[0]
    return [whole[start : start + setting.shape[0]], _whole(seat, setting, rank=seat.rank)]


def _whole(seat: Seat, setting: Setting, *, rank: int) -> torch.Tensor:
    return torch.cat([sample(setting, rank=rank, piece=piece) for piece in range(seat.size)])


ALL_REDUCE = Collective("all_reduce", _all_reduce, _all_reduced)
ALL_REDUCE_COALESCED = Collective("all_reduce_coalesced", _all_reduce_coalesced, _all_reduced_coalesced)
REDUCE = Collective("reduce", _reduce, _reduced_at_root)
REDUCE_SCATTER = Collective("reduce_scatter", _reduce_scatter, _reduce_scattered)
REDUCE_SCATTER_SINGLE = Collective(
    "reduce_scatter_single", _reduce_scatter_single, _reduce_scattered_single, takes_scalars=False
)


def _uneven_reduce_scatters() -> Iterator[Case]:
    # The list may be uneven, as long as each rank's output has the shape of its own entry.
    def program(rank: int) -> torch.Tensor:
        inputs = [sample(Setting(), rank=rank, piece=piece, shape=(piece,)) for piece in range(3)]
        output = torch.empty(rank)
        dist.reduce_scatter(output, inputs)
        return output

    def expected(rank: int) -> torch.Tensor:
        return reduced("SUM", [sample(Setting(), rank=other, piece=rank, shape=(rank,)) for other in range(3)])

    yield Case("reduce_scatter-uneven", 3, program, expected)


def _fractions() -> Iterator[Case]:
    # Numbers whose sums depend on the order: equal on all ranks, and near the sum in rank order.
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-15), (torch.bfloat16, 2e-2)):

        def fractions(rank: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return (torch.arange(2500, dtype=torch.float64) * (0.37 + 0.11 * rank)).sin().to(dtype)

        def program(rank: int, fractions=fractions) -> list[object]:
            tensor = fractions(rank)
            dist.all_reduce(tensor)
            copies = [torch.empty_like(tensor) for _ in range(4)]
            dist.all_gather(copies, tensor)
            return [tensor, all(torch.equal(copy, tensor) for copy in copies)]

        def expected(rank: int, fractions=fractions) -> list[object]:
            return [reduced("SUM", [fractions(other) for other in range(4)]), True]

        yield Case(f"all_reduce-fractions-{dtype}".replace("torch.", ""), 4, program, expected, tolerance=tolerance)


def _old_names() -> Iterator[Case]:
    for name in ("reduce_scatter_tensor", "_reduce_scatter_base"):

        def program(rank: int, name: str = name) -> torch.Tensor:
            output = torch.empty(2)
            getattr(dist, name)(output, sample(Setting(shape=(4,)), rank=rank))
            return output

        def expected(rank: int) -> torch.Tensor:
            whole = reduced("SUM", [sample(Setting(shape=(4,)), rank=other) for other in range(2)])
            return whole[2 * rank : 2 * rank + 2]

        yield Case(f"{name}-old-name", 2, program, expected)


def _roots() -> Iterator[Case]:
    for root in range(3):

        def program(rank: int, root: int = root) -> torch.Tensor | None:
            group = dist.new_group([0, 2, 3])
            if rank == 1:
                return None
            tensor = sample(Setting(), rank=rank)
            dist.reduce(tensor, group=group, group_dst=root)
            return tensor if dist.get_rank(group) == root else None

        def expected(rank: int, root: int = root) -> torch.Tensor | None:
            members = (0, 2, 3)
            if rank != members[root]:
                return None
            return reduced("SUM", [sample(Setting(), rank=member) for member in members])

        yield Case(f"reduce-group_dst-{root}", 4, program, expected)


def _sparse() -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        yield _sparse_case(
            f"all_reduce-sparse-{dtype}".replace("torch.", ""),
            lambda rank, dtype=dtype: _coo([[rank, 0, 2]], torch.tensor([1 + rank, 2, 3]).to(dtype), (5,)),
        )
    yield _sparse_case(
        "all_reduce-sparse-hybrid",
        lambda rank: _coo([[rank, 3]], torch.tensor([[1.0, 2.0 + rank], [3.0, 4.0]]), (4, 2)),
    )
    yield _sparse_case(
        "all_reduce-sparse-two-dimensions",
        lambda rank: _coo([[rank, 1], [0, rank]], torch.tensor([1.0 + rank, 5.0]), (3, 3)),
    )
    yield _sparse_case(
        "all_reduce-sparse-uneven",
        lambda rank: _coo([list(range(rank))], torch.arange(1.0, rank + 1.0), (4,)),
    )


def _sparse_case(name: str, make: Callable[[int], torch.Tensor]) -> Case:
    def program(rank: int) -> list[object]:
        tensor = make(rank)
        dist.all_reduce(tensor)
        return [tensor, tensor.is_coalesced()]

    def expected(rank: int) -> list[object]:
        return [sum((make(other) for other in range(1, 3)), start=make(0)), True]

    return Case(name, 3, program, expected)


def _coo(indices: list[list[int]], values: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    positions = torch.tensor(indices, dtype=torch.int64).reshape(len(indices), -1)
    return torch.sparse_coo_tensor(positions, values, size, check_invariants=True)
