"""Cases with tensors that are not contiguous: some calls mean their elements, others raw memory, as on gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.movement import all_gather_single
from tests.semantics.reductions import reduce_scatter_single
from tests.semantics.sweep import Setting, reduced, sample

WORLD_SIZE = 2


def cases() -> Iterator[Case]:
    # Dense and permuted alike on all ranks: memory order will do.
    yield _case("all_reduce-transposed", _all_reduce(_transposed), lambda rank: _sum(_matrix).t())
    yield _case("broadcast-transposed", _broadcast(_transposed), lambda rank: _transposed(1))
    # Strided, or laid out differently per rank: gloo takes as many elements from where a tensor begins in memory.
    for name, layout in (("strided", _strided), ("column", _column), ("one-transposed", _transposed_on_rank_0)):
        yield _case(f"all_reduce-{name}", _all_reduce(layout), partial(_with_raw_sum, layout))
        yield _case(
            f"broadcast-{name}",
            _broadcast(layout),
            lambda rank, layout=layout: _with_memory(layout(rank), _memory(layout(1))),
        )
    yield _case("reduce-strided", _reduce, lambda rank: _with_raw_sum(_strided, rank) if rank == 0 else None)
    yield _case("all_reduce-view-leaves-the-rest", _all_reduce_of_row, lambda rank: _with_row_reduced(rank))
    yield _case("all_gather-transposed", _all_gather, lambda rank: [_transposed(0), _transposed(1)])
    yield _case(
        "all_gather-into-columns", _all_gather_into_columns, lambda rank: torch.stack([_row(0), _row(1)], dim=1)
    )
    yield _case(
        "all_gather_single-transposed", _all_gather_single, lambda rank: torch.cat([_matrix(0), _matrix(1)]).t()
    )
    yield _case("gather-transposed", _gather, lambda rank: [_transposed(0), _transposed(1)] if rank == 0 else None)
    yield _case("scatter-transposed", _scatter, lambda rank: _memory(_transposed(rank)).view(3, 2))
    yield _case("reduce_scatter-transposed", _reduce_scatter, lambda rank: _sum(_transposed))
    yield _case(
        "reduce_scatter_single-transposed",
        _reduce_scatter_single,
        lambda rank: _sum(_square).t()[2 * rank : 2 * rank + 2],
    )
    yield _case("all_to_all-transposed", _all_to_all, lambda rank: [_transposed(0), _transposed(1)])
    yield _case(
        "all_to_all_single-output-transposed",
        _all_to_all_single,
        lambda rank: torch.cat([_square(other)[2 * rank : 2 * rank + 2] for other in range(WORLD_SIZE)]).t(),
    )


def _case(name: str, program: Callable[[int], object], expected: Callable[[int], object]) -> Case:
    return Case(f"{name}-layout", WORLD_SIZE, program, expected)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """As many elements as a tensor has, from where it begins in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _with_memory(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    _memory(tensor).copy_(values)
    return tensor


def _with_raw_sum(make: Callable[[int], torch.Tensor], rank: int) -> torch.Tensor:
    return _with_memory(make(rank), _sum(lambda of: _memory(make(of))))


def _matrix(rank: int) -> torch.Tensor:
    return sample(Setting(), rank=rank)


def _square(rank: int) -> torch.Tensor:
    return sample(Setting(shape=(4, 4)), rank=rank)


def _row(rank: int) -> torch.Tensor:
    return sample(Setting(shape=(3,)), rank=rank)


def _transposed(rank: int) -> torch.Tensor:
    return _matrix(rank).t()


def _strided(rank: int) -> torch.Tensor:
    return sample(Setting(shape=(12,)), rank=rank)[::2]


def _column(rank: int) -> torch.Tensor:
    return _square(rank)[:, 1]


def _transposed_on_rank_0(rank: int) -> torch.Tensor:
    return _matrix(rank).t().contiguous().t() if rank == 0 else _matrix(rank)


def _sum(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
    return reduced("SUM", [make(rank) for rank in range(WORLD_SIZE)])


def _all_reduce(make: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    def program(rank: int) -> torch.Tensor:
        tensor = make(rank)
        dist.all_reduce(tensor)
        return tensor

    return program


def _broadcast(make: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    def program(rank: int) -> torch.Tensor:
        tensor = make(rank)
        dist.broadcast(tensor, 1)
        return tensor

    return program


def _reduce(rank: int) -> torch.Tensor | None:
    tensor = _strided(rank)
    dist.reduce(tensor, 0)
    return tensor if rank == 0 else None


def _all_reduce_of_row(rank: int) -> torch.Tensor:
    matrix = _square(rank)
    dist.all_reduce(matrix[1])
    return matrix


def _with_row_reduced(rank: int) -> torch.Tensor:
    matrix = _square(rank)
    matrix[1] = _sum(_square)[1]
    return matrix


def _all_gather(rank: int) -> list[torch.Tensor]:
    outputs = [torch.empty(2, 3).t() for _ in range(WORLD_SIZE)]
    dist.all_gather(outputs, _transposed(rank))
    return outputs


def _all_gather_into_columns(rank: int) -> torch.Tensor:
    output = torch.empty(3, WORLD_SIZE)
    dist.all_gather(list(output.unbind(dim=1)), _row(rank))
    return output


def _all_gather_single(rank: int) -> torch.Tensor:
    output = torch.empty(3, 4).t()
    all_gather_single(output, _matrix(rank).t().contiguous().t())
    return output.t()


def _gather(rank: int) -> list[torch.Tensor] | None:
    outputs = [torch.empty(2, 3).t() for _ in range(WORLD_SIZE)] if rank == 0 else None
    dist.gather(_transposed(rank), outputs)
    return outputs


def _scatter(rank: int) -> torch.Tensor:
    output = torch.empty(3, 2)
    dist.scatter(output, [_transposed(0), _transposed(1)] if rank == 0 else None)
    return output


def _reduce_scatter(rank: int) -> torch.Tensor:
    output = torch.empty(2, 3).t()
    dist.reduce_scatter(output, [_transposed(rank), _transposed(rank)])
    return output


def _reduce_scatter_single(rank: int) -> torch.Tensor:
    output = torch.empty(4, 2).t()
    reduce_scatter_single(output, _square(rank).t())
    return output


def _all_to_all(rank: int) -> list[torch.Tensor]:
    outputs = [torch.empty(2, 3).t() for _ in range(WORLD_SIZE)]
    dist.all_to_all(outputs, [_transposed(rank), _transposed(rank)])
    return outputs


def _all_to_all_single(rank: int) -> torch.Tensor:
    output = torch.empty(4, 4).t()
    dist.all_to_all_single(output, _square(rank))
    return output
