"""What a call's tensors and options say, as the plain values of a `Signature`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp

from ddpsim.simulator.calls import Shape

_DTYPE_NAMES: dict[torch.dtype, str] = {
    value: str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)
}


_REDUCTION_NAMES = {value.value: name for name, value in ReduceOp.RedOpType.__members__.items()}
"""By the hash of an operation, which is its number (c10d/init.cpp): its `op` is an enum of pybind11, which is made for
who asks, and compares all of its members to tell the name of one."""


def shapes_of(tensors: Sequence[Tensor]) -> tuple[Shape, ...]:
    """The shapes, as plain tuples."""
    return tuple([tuple(tensor.shape) for tensor in tensors])


def dtype_of(tensor: Tensor) -> str:
    """The name of the dtype, as in `float32` and, for a sparse tensor, `sparse float32`."""
    name = _DTYPE_NAMES[tensor.dtype]
    return name if tensor.layout is torch.strided else f"sparse {name}"


def numels(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """How many elements each tensor has."""
    return tuple([tensor.numel() for tensor in tensors])


def equal_parts(splits: Sequence[int], tensor: Tensor, size: int) -> tuple[int, ...]:
    """The splits of all_to_all_single; none means equal parts."""
    return tuple(splits) or (tensor.shape[0] // size,) * size


def reduction_of(opts: Any) -> tuple[str, Any]:
    """The name of the reduction, and the factor of a PREMUL_SUM."""
    if opts is None:
        return "SUM", None
    operation: Any = opts.reduceOp
    if not isinstance(operation, ReduceOp):
        return operation.name, None
    name = _REDUCTION_NAMES[hash(operation)]
    if name != "PREMUL_SUM":
        return name, None
    # What pickle takes is the operation and its factor; torch 2.11 has no attribute for the factor.
    return name, operation.__getstate__()[1]  # type: ignore[attr-defined]
