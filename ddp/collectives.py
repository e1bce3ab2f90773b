"""What a call of a group's method asks of the other ranks: read from its arguments, and told as numbers or in words."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.ddp.wording import tensor_text

NO_ROOT = -1
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
_DEVICES = ("cpu", "cuda", "xpu")
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_PUBLIC_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
    "allgather_coalesced": "all_gather_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "_start_coalescing": "a batch of calls (batch_isend_irecv)",
}
OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "allgather", "all_gather_single", "_allgather_base"),
    *("reduce", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("gather", "gather_single", "gather_into_tensor", "scatter"),
    *("alltoall", "all_to_all_single", "alltoall_base"),
    *("barrier", "monitored_barrier"),
    *("allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("send", "recv", "recv_anysource", "_start_coalescing"),
)
"""The methods of a process group, by the names of torch 2.11 to 2.14."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that joined ranks are asked to take part in."""

    operation: str
    reduction: str
    root: int
    """Group rank, or `NO_ROOT`."""
    dtype: torch.dtype
    device_type: str
    is_sparse: bool
    holds_object: bool
    """Part of all_gather_object or gather_object: what it moves are pickled objects, and their sizes."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor that a rank contributes."""

    def encode(self) -> tuple[int, ...]:
        """As numbers; shapes that repeat, as one with its count."""
        numbers = [OPERATIONS.index(self.operation), _REDUCTIONS.index(self.reduction), self.root]
        numbers += [_DTYPES.index(self.dtype), _DEVICES.index(self.device_type), self.is_sparse, self.holds_object]
        for shape, repeated in groupby(self.shapes):
            numbers += [len(list(repeated)), len(shape), *shape]
        return tuple(numbers)

    @classmethod
    def decode(cls, numbers: Sequence[int]) -> Collective:
        """From `encode`."""
        operation, reduction, root, dtype, device_type, is_sparse, holds_object, *rest = numbers
        shapes: list[tuple[int, ...]] = []
        while rest:
            times, dimensions, *rest = rest
            shapes += [tuple(rest[:dimensions])] * times
            rest = rest[dimensions:]
        return cls(
            OPERATIONS[operation],
            _REDUCTIONS[reduction],
            root,
            _DTYPES[dtype],
            _DEVICES[device_type],
            bool(is_sparse),
            bool(holds_object),
            tuple(shapes),
        )

    def __str__(self) -> str:
        """As in "all_reduce MAX float32[3]"."""
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
    """What torch.distributed calls a method of the group."""
    return _PUBLIC_NAMES.get(operation, operation)


def describe(operation: str, arguments: Sequence[Any]) -> Collective | None:
    """What a call of a group's method asks of the other ranks; None if they cannot take part."""
    read = _READERS.get(operation)
    try:
        return None if read is None else read(operation, *arguments)
    except (TypeError, IndexError, AttributeError):  # not how torch.distributed calls it
        return None


def _reduction(options: Any) -> str | None:
    operation = getattr(options, "reduceOp", options)
    if operation is None:
        return "SUM"
    name = getattr(getattr(operation, "op", operation), "name", "SUM")
    return name if name in _REDUCTIONS else None


def _of(operation: str, tensors: Sequence[Tensor], options: Any = None, *, root: int = NO_ROOT) -> Collective | None:
    if isinstance(tensors, Tensor):  # the group's methods take one alone, too
        tensors = [tensors]
    reduction = _reduction(options) if "reduce" in operation else "SUM"
    kinds = {(tensor.dtype, tensor.device.type, tensor.is_sparse) for tensor in tensors}
    if reduction is None or len(kinds) > 1:
        return None
    dtype, device_type, is_sparse = kinds.pop() if kinds else (torch.uint8, _DEVICES[0], False)
    if dtype not in _DTYPES or device_type not in _DEVICES:
        return None
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    holds_object = operation in _MOVING_OBJECTS and _is_called_for_objects(sys._getframe(1))
    return Collective(operation, reduction, root, dtype, device_type, is_sparse, holds_object, shapes)


_MOVING_OBJECTS = ("allgather", "gather", "all_gather_single")
"""What objects travel by; the last of them since torch 2.15."""
_OBJECT_CODES = frozenset(inspect.unwrap(f).__code__ for f in (dist.all_gather_object, dist.gather_object))


def _is_called_for_objects(frame: FrameType | None) -> bool:
    """Whether torch's collectives of objects make this call: all the group sees of them are tensors of bytes."""
    while frame is not None:
        if frame.f_code in _OBJECT_CODES:
            return True
        frame = frame.f_back
    return False


def _root_of(options: Any) -> int:
    return options if isinstance(options, int) else int(options.rootRank)


def _reads_tensors(operation: str, tensors: list[Tensor], options: Any = None, *rest: Any) -> Collective | None:
    return _of(operation, tensors, options)


def _reads_rooted(operation: str, tensors: list[Tensor], options: Any, *rest: Any) -> Collective | None:
    return _of(operation, tensors, None if isinstance(options, int) else options, root=_root_of(options))


def _reads_second(
    operation: str, outputs: Any, tensors: list[Tensor], options: Any = None, *rest: Any
) -> Collective | None:
    return _of(operation, tensors, options)


def _reads_second_rooted(operation: str, outputs: Any, tensors: list[Tensor], options: Any) -> Collective | None:
    return _of(operation, tensors, options, root=_root_of(options))


def _reads_single(operation: str, output: Tensor, tensor: Tensor, options: Any = None, *rest: Any) -> Collective | None:
    return _of(operation, [tensor], options)


def _reads_lists(operation: str, outputs: Any, lists: list[list[Tensor]], options: Any = None) -> Collective | None:
    return _of(operation, lists[0], options)


def _reads_scatter(operation: str, outputs: list[Tensor], lists: Any, options: Any) -> Collective | None:
    return _of(operation, outputs, options, root=_root_of(options))


def _reads_exchange(operation: str, outputs: list[Tensor], tensors: list[Tensor], *rest: Any) -> Collective | None:
    # Parts of different sizes: what a joined rank would have to receive, nobody else knows.
    if len({tuple(tensor.shape) for tensor in (*outputs, *tensors)}) > 1:
        return None
    return _of(operation, tensors)


def _reads_splits(
    operation: str, output: Tensor, tensor: Tensor, output_splits: Any, input_splits: Any, *rest: Any
) -> Collective | None:
    if len({*output_splits, *input_splits}) > 1 or output.shape != tensor.shape:
        return None
    return _of(operation, [tensor])


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
    "alltoall": _reads_exchange,
    "all_to_all_single": _reads_splits,
    "alltoall_base": _reads_splits,
    "barrier": _reads_barrier,
    "monitored_barrier": _reads_barrier,
    "all_gather_single_coalesced": _reads_second,
    "allgather_into_tensor_coalesced": _reads_second,
    "reduce_scatter_single_coalesced": _reads_second,
    "reduce_scatter_tensor_coalesced": _reads_second,
}
