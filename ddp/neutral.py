"""Collectives that a rank without input can take part in: described as numbers, and made with a neutral contribution.

Neutral is what leaves the result as the other ranks make it: 0 for a sum, the lowest value for a maximum. Where ranks
are kept apart (gathers, all-to-all) the neutral contribution is zeros of the right shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

NO_ROOT = -1
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "allgather", "all_gather_single", "_allgather_base"),
    *("reduce", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "gather", "scatter"),
    *("alltoall", "all_to_all_single", "alltoall_base", "barrier"),
    *("allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "monitored_barrier"),
    *("send", "recv", "recv_anysource"),
)
"""The methods of a process group, by the names of torch 2.11 and 2.13."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that joined ranks are asked to take part in."""

    operation: str
    reduction: str
    root: int
    """Group rank, or `NO_ROOT`."""
    dtype: torch.dtype
    is_sparse: bool
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor that a rank contributes."""

    def encode(self) -> tuple[int, ...]:
        """As numbers."""
        numbers = [OPERATIONS.index(self.operation), _REDUCTIONS.index(self.reduction), self.root]
        numbers += [_DTYPES.index(self.dtype), self.is_sparse, len(self.shapes)]
        for shape in self.shapes:
            numbers += [len(shape), *shape]
        return tuple(numbers)

    @classmethod
    def decode(cls, numbers: Sequence[int]) -> Collective:
        """From `encode`."""
        operation, reduction, root, dtype, is_sparse, count = numbers[:6]
        shapes, place = [], 6
        for _ in range(count):
            end = place + 1 + numbers[place]
            shapes.append(tuple(numbers[place + 1 : end]))
            place = end
        return cls(OPERATIONS[operation], _REDUCTIONS[reduction], root, _DTYPES[dtype], bool(is_sparse), tuple(shapes))

    def __str__(self) -> str:
        tensors = ", ".join(f"{str(self.dtype).removeprefix('torch.')}{list(shape)}" for shape in self.shapes)
        root = "" if self.root == NO_ROOT else f" root {self.root}"
        return f"{self.operation} {tensors}{root}".replace(" ", " ", 1)


def describe(operation: str, arguments: Sequence[Any]) -> Collective | None:
    """What a call of a group's method asks of the other ranks; None if they cannot take part."""
    read = _READERS.get(operation)
    described = None if read is None else read(operation, *arguments)
    if described is None or described.dtype not in _DTYPES:
        return None
    return described


def take_part(collective: Collective, group: ProcessGroup, device: torch.device) -> None:
    """Make the collective with a neutral contribution, and wait until it is over."""
    _SHADOWS[collective.operation](
        collective, group, [_neutral(collective, shape, device) for shape in collective.shapes]
    )


def _reduction(options: Any) -> str:
    operation = getattr(options, "reduceOp", None)
    if operation is None:
        return "SUM"
    for name in _REDUCTIONS:
        known = getattr(dist.ReduceOp, name, None)
        if known is not None and operation == known:
            return name
    return "SUM"


def _of(operation: str, tensors: Sequence[Tensor], options: Any = None, *, root: int = NO_ROOT) -> Collective | None:
    if len({tensor.dtype for tensor in tensors}) > 1:
        return None
    dtype = tensors[0].dtype if tensors else torch.uint8
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    is_sparse = any(tensor.is_sparse for tensor in tensors)
    return Collective(operation, _reduction(options), root, dtype, is_sparse, shapes)


def _reads_tensors(operation: str, tensors: list[Tensor], options: Any = None, *rest: Any) -> Collective | None:
    return _of(operation, tensors, options)


def _reads_rooted(operation: str, tensors: list[Tensor], options: Any, *rest: Any) -> Collective | None:
    return _of(operation, tensors, options, root=options.rootRank)


def _reads_second(
    operation: str, outputs: Any, tensors: list[Tensor], options: Any = None, *rest: Any
) -> Collective | None:
    return _of(operation, tensors, options)


def _reads_second_rooted(operation: str, outputs: Any, tensors: list[Tensor], options: Any) -> Collective | None:
    return _of(operation, tensors, options, root=options.rootRank)


def _reads_single(operation: str, output: Tensor, tensor: Tensor, options: Any = None, *rest: Any) -> Collective | None:
    return _of(operation, [tensor], options)


def _reads_lists(operation: str, outputs: Any, lists: list[list[Tensor]], options: Any = None) -> Collective | None:
    return _of(operation, lists[0], options)


def _reads_scatter(operation: str, outputs: list[Tensor], lists: Any, options: Any) -> Collective | None:
    return _of(operation, outputs, options, root=options.rootRank)


def _reads_splits(
    operation: str, output: Tensor, tensor: Tensor, outputs: Any, inputs: Any, *rest: Any
) -> Collective | None:
    # Uneven splits differ by rank: what a joined rank would have to receive, nobody else knows.
    return None if outputs or inputs else _of(operation, [tensor])


def _reads_barrier(operation: str, *rest: Any) -> Collective | None:
    return _of(operation, [])


_Reader = Callable[..., "Collective | None"]
_READERS: dict[str, _Reader] = {
    "allreduce": _reads_tensors,
    "allreduce_coalesced": _reads_tensors,
    "broadcast": _reads_rooted,
    "reduce": _reads_rooted,
    "allgather": _reads_second,
    "all_gather_single": _reads_single,
    "_allgather_base": _reads_single,
    "gather": _reads_second_rooted,
    "reduce_scatter": _reads_lists,
    "reduce_scatter_single": _reads_single,
    "_reduce_scatter_base": _reads_single,
    "scatter": _reads_scatter,
    "alltoall": _reads_second,
    "all_to_all_single": _reads_splits,
    "alltoall_base": _reads_splits,
    "barrier": _reads_barrier,
}


def _neutral(collective: Collective, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if collective.is_sparse:
        indices = torch.empty(1, 0, dtype=torch.long, device=device)
        values = torch.empty(0, *shape[1:], dtype=collective.dtype, device=device)
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    return torch.full(
        shape, _neutral_value(collective.reduction, collective.dtype), dtype=collective.dtype, device=device
    )


def _neutral_value(reduction: str, dtype: torch.dtype) -> float | int | bool:
    if reduction == "PRODUCT":
        return 1
    if reduction == "BAND":
        return True if dtype is torch.bool else -1 if dtype.is_signed else 255
    if reduction in ("MIN", "MAX"):
        if dtype is torch.bool:
            return reduction == "MIN"
        if dtype.is_floating_point:
            return float("inf") if reduction == "MIN" else float("-inf")
        limits = torch.iinfo(dtype)
        return limits.max if reduction == "MIN" else limits.min
    return 0


def _op(collective: Collective) -> Any:
    return getattr(dist.ReduceOp, collective.reduction)


def _parts(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    return [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]


def _root(collective: Collective, group: ProcessGroup) -> int:
    return dist.get_global_rank(group, collective.root)


def _all_reduces(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.all_reduce(tensors[0], op=_op(collective), group=group)


def _all_reduces_coalesced(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _op(collective)
    group.allreduce_coalesced(tensors, options).wait()


def _broadcasts(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.broadcast(tensors[0], _root(collective, group), group=group)


def _reduces(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.reduce(tensors[0], _root(collective, group), op=_op(collective), group=group)


def _all_gathers(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.all_gather(_parts(tensors[0], group), tensors[0], group=group)


def _all_gathers_single(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    (tensor,) = tensors
    output = tensor.new_empty(dist.get_world_size(group) * tensor.numel())
    dist.all_gather_into_tensor(output, tensor.reshape(-1), group=group)


def _gathers(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    root = _root(collective, group)
    dist.gather(tensors[0], _parts(tensors[0], group) if dist.get_rank() == root else None, root, group=group)


def _reduce_scatters(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.reduce_scatter(torch.empty_like(tensors[dist.get_rank(group)]), tensors, op=_op(collective), group=group)


def _reduce_scatters_single(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    flat = tensors[0].reshape(-1)
    output = flat.new_empty(flat.numel() // dist.get_world_size(group))
    dist.reduce_scatter_tensor(output, flat, op=_op(collective), group=group)


def _scatters(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.scatter(tensors[0], None, _root(collective, group), group=group)


def _all_to_alls(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.all_to_all([torch.empty_like(tensor) for tensor in tensors], tensors, group=group)


def _all_to_alls_single(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.all_to_all_single(torch.empty_like(tensors[0]), tensors[0], group=group)


def _barriers(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    dist.barrier(group=group)


_SHADOWS: dict[str, Callable[[Collective, ProcessGroup, list[Tensor]], None]] = {
    "allreduce": _all_reduces,
    "allreduce_coalesced": _all_reduces_coalesced,
    "broadcast": _broadcasts,
    "reduce": _reduces,
    "allgather": _all_gathers,
    "all_gather_single": _all_gathers_single,
    "_allgather_base": _all_gathers_single,
    "gather": _gathers,
    "reduce_scatter": _reduce_scatters,
    "reduce_scatter_single": _reduce_scatters_single,
    "_reduce_scatter_base": _reduce_scatters_single,
    "scatter": _scatters,
    "alltoall": _all_to_alls,
    "all_to_all_single": _all_to_alls_single,
    "alltoall_base": _all_to_alls_single,
    "barrier": _barriers,
}
