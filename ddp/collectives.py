"""A collective as a value, read from a call of a process group's method, and the part of joined ranks in it.

A rank without input makes the same collective with a neutral contribution, which leaves the others' result unchanged: 0
for a sum, the lowest value for a maximum. If each rank has its own part of the result (gathers, all-to-all), the
contribution is zeros of the right shape, or None as an object.
"""

import inspect
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ddpsim.ddp.collective_table import OPERATIONS, TABLE, JoinedRankPart
from ddpsim.ddp.text_formats import tensor_text

NO_ROOT = -1
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
_DEVICES = ("cpu", "cuda", "xpu")
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that ranks without input are asked to take part in."""

    operation: str
    reduction: str
    root: int
    """The root's rank in the group, or `NO_ROOT`."""
    dtype: torch.dtype
    device_type: str
    is_sparse: bool
    holds_object: bool
    """Whether the call belongs to all_gather_object or gather_object, which send pickled objects and their sizes."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each tensor that a rank contributes."""

    def encode(self) -> tuple[int, ...]:
        """Encode the collective as integers; a repeated shape is written once, with its count."""
        numbers = [OPERATIONS.index(self.operation), _REDUCTIONS.index(self.reduction), self.root]
        numbers += [DTYPES.index(self.dtype), _DEVICES.index(self.device_type), self.is_sparse, self.holds_object]
        for shape, repeated in groupby(self.shapes):
            numbers += [len(list(repeated)), len(shape), *shape]
        return tuple(numbers)

    @classmethod
    def decode(cls, numbers: Sequence[int]) -> "Collective":
        """Return the collective from the integers that `encode` returned."""
        operation, reduction, root, dtype, device_type, is_sparse, holds_object, *rest = numbers
        shapes: list[tuple[int, ...]] = []
        while rest:
            times, dimensions, *rest = rest
            shapes += [tuple(rest[:dimensions])] * times
            rest = rest[dimensions:]
        kind = DTYPES[dtype], _DEVICES[device_type], bool(is_sparse), bool(holds_object)
        return cls(OPERATIONS[operation], _REDUCTIONS[reduction], root, *kind, tuple(shapes))

    def __str__(self) -> str:
        """Return the collective as text, such as "all_reduce MAX float32[3]"."""
        parts = [public_name(self.operation) + (" of an object" if self.holds_object else "")]
        if "reduce" in self.operation:
            parts.append(self.reduction)
        for shape, repeated in groupby(self.shapes):
            times = len(list(repeated))
            parts.append(tensor_text(self.dtype, shape) + (f" x {times}" if times > 1 else ""))
        if self.root != NO_ROOT:
            parts.append(f"root {self.root}")
        return " ".join(parts)


def public_name(operation: str) -> str:
    """Return the function name in torch.distributed for a name of a process group's method."""
    return TABLE[operation].name


def collective_of_call(operation: str, arguments: Sequence[Any]) -> Collective | None:
    """Return the collective that a call of a process group's method makes; None if ranks without input cannot."""
    row = TABLE[operation]
    try:
        contributed = row.contribution and row.contribution(*arguments)
        return _make_collective(operation, *contributed, is_rooted=row.is_rooted) if contributed else None
    except (TypeError, IndexError, AttributeError):  # torch.distributed did not make this call
        return None


def _reduction_name(options: Any) -> str | None:
    operation = getattr(options, "reduceOp", options)
    if operation is None:
        return "SUM"
    name = getattr(getattr(operation, "op", operation), "name", "SUM")
    return name if name in _REDUCTIONS else None


def _make_collective(
    operation: str, tensors: Tensor | Sequence[Tensor], options: Any, *, is_rooted: bool
) -> Collective | None:
    if isinstance(tensors, Tensor):  # the group's methods also take a single tensor
        tensors = [tensors]
    reduction = _reduction_name(options) if "reduce" in operation else "SUM"
    root = NO_ROOT if not is_rooted else options if isinstance(options, int) else int(options.rootRank)
    kinds = {(tensor.dtype, tensor.device.type, tensor.is_sparse) for tensor in tensors}
    if reduction is None or len(kinds) > 1:
        return None
    dtype, device_type, is_sparse = kinds.pop() if kinds else (torch.uint8, _DEVICES[0], False)
    if dtype not in DTYPES or device_type not in _DEVICES:
        return None
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    holds_object = operation in _MOVING_OBJECTS and _is_called_for_objects(sys._getframe(1))
    return Collective(operation, reduction, root, dtype, device_type, is_sparse, holds_object, shapes)


_MOVING_OBJECTS = ("allgather", "gather", "all_gather_single")
"""The process group's methods that send pickled objects; the last of these methods exists since torch 2.15."""
_OBJECT_CODES = frozenset(inspect.unwrap(f).__code__ for f in (dist.all_gather_object, dist.gather_object))


def _is_called_for_objects(frame: FrameType | None) -> bool:
    """Return whether torch makes this call to send pickled objects; the call's tensors then hold bytes."""
    while frame is not None:
        if frame.f_code in _OBJECT_CODES:
            return True
        frame = frame.f_back
    return False


def make_neutral_collective(collective: Collective, group: ProcessGroup, device: torch.device) -> None:
    """Make the collective with a contribution that changes nothing, on `device` if possible, and wait for its end."""
    if collective.device_type != device.type:
        device = torch.device(collective.device_type)
    contribution = _pickled_none if collective.holds_object else _neutral_tensor
    tensors = [contribution(collective, shape, device) for shape in collective.shapes]
    take = TABLE[collective.operation].take
    assert take is not None, f"nobody is asked to take part in {collective}"
    take(JoinedRankPart(collective.operation, group, tensors, _reduce_op(collective), _global_root(collective, group)))


def _neutral_tensor(collective: Collective, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if collective.is_sparse:
        indices = torch.empty(1, 0, dtype=torch.long, device=device)
        values = torch.empty(0, *shape[1:], dtype=collective.dtype, device=device)
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    value = _neutral_value(collective.reduction, collective.dtype)
    return torch.full(shape, value, dtype=collective.dtype, device=device)


def _neutral_value(reduction: str, dtype: torch.dtype) -> float | int | bool:
    if reduction == "PRODUCT":
        return 1
    if reduction == "BAND":
        return True if dtype is torch.bool else -1 if dtype.is_signed else torch.iinfo(dtype).max
    if reduction in ("MIN", "MAX"):
        if dtype is torch.bool:
            return reduction == "MIN"
        if dtype.is_floating_point:
            return float("inf") if reduction == "MIN" else float("-inf")
        limits = torch.iinfo(dtype)
        return limits.max if reduction == "MIN" else limits.min
    return 0


def _pickled_none(collective: Collective, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a pickled None or its size. torch sends sizes first, then tensors with room for the largest object."""
    pickled = pickle.dumps(None)
    if collective.dtype is not torch.uint8:
        return torch.full(shape, len(pickled), dtype=collective.dtype, device=device)
    padded = torch.zeros(shape, dtype=torch.uint8, device=device)
    padded[: len(pickled)] = torch.tensor(list(pickled), dtype=torch.uint8)
    return padded


def _reduce_op(collective: Collective) -> Any:
    if collective.reduction == "PREMUL_SUM":
        return getattr(dist, "_make_nccl_premul_sum")(1.0)  # noqa: B009 - only where there is NCCL
    return getattr(dist.ReduceOp, collective.reduction)


def _global_root(collective: Collective, group: ProcessGroup) -> int:
    return NO_ROOT if collective.root == NO_ROOT else dist.get_global_rank(group, collective.root)
