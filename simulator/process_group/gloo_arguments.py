"""Argument checks of gloo: what it refuses, in its own words (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).

Its texts are used except where it crashes the process or hangs. `check_*` functions raise where gloo does, when the
call is issued; what it finds out only on its worker thread comes back as a value of `refusal`, for the work to raise
when it is waited for. Not refused, although gloo does: PREMUL_SUM, which NCCL has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

from ddpsim.simulator.process_group.arguments import (
    TYPE_NAMES,
    bare_sizes,
    no_kernel,
    scalar_name,
    sizes,
    unlike,
    wrong_length,
)

_TAKEN = frozenset(
    "float16 bfloat16 float32 float64 int8 uint8 int32 int64 bool complex64 complex128".split()  # noqa: SIM905
)
"""What collectives take. Point-to-point moves bytes and takes everything."""

_BITWISE = frozenset({"BAND", "BOR", "BXOR"})


@cache
def refusal(operation: str, dtype: str, reduction: str | None) -> str | None:
    """What gloo's worker thread says to a dtype, alone or with a reduction; None if it does the work."""
    dtype = dtype.removeprefix("sparse ")
    if dtype not in _TAKEN:
        return "Invalid scalar type"
    if reduction is None:
        return None
    is_complex = dtype.startswith("complex")
    is_fractional = is_complex or "float" in dtype
    if is_complex and reduction not in ("SUM", "AVG", "PREMUL_SUM"):
        return f"{operation} does not support ReduceOp.{reduction} on complex tensors"
    if reduction in _BITWISE and is_fractional:
        return f"Cannot use ReduceOp.{reduction} with non-integral dtype"
    if reduction == "AVG" and not is_fractional:
        return f"result type Float can't be cast to the desired output type {scalar_name(getattr(torch, dtype))}"
    return None


def check_all_reduce(tensor: Tensor, reduction: str) -> None:
    """A sparse all_reduce is for COO tensors, and can only sum."""
    if tensor.layout is torch.strided:
        return
    if tensor.layout is not torch.sparse_coo:
        raise no_kernel("allreduce_", tensor)
    if reduction != "SUM":
        raise RuntimeError(
            "ProcessGroupGloo::allreduce: unsupported reduction operation (allreduce of sparse tensors only works with "
            "ReduceOp.SUM)"
        )
    if tensor.dtype in (torch.float16, torch.bool):
        raise NotImplementedError(f"\"cadd_sparse\" not implemented for '{scalar_name(tensor.dtype)}'")


def check_message(tensors: Sequence[Tensor], tag: int) -> None:
    """A message is contiguous, and its tag 0 or more."""
    if tag < 0:
        raise RuntimeError("Tag must be nonnegative")
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")


def check_any_source() -> None:
    """Whoever sends may be received from."""


def check_in_place(tensors: Sequence[Tensor]) -> None:
    """What one call reduces or broadcasts may lie in memory as it likes."""


def check_like(operation: str, tensors: Iterable[Tensor], model: Tensor) -> None:
    """Every tensor has the dtype, the device and the shape of `model`."""
    if (problem := unlike(tensors, model)) is not None:
        raise _invalid(operation, problem)


def check_all_gather(outputs: Sequence[Tensor], tensor: Tensor, rank: int, size: int) -> Sequence[Tensor]:
    """One output for each rank, like the input."""
    if len(outputs) != size:
        raise _invalid("allgather", f"output tensor list at index 0 (expected length {size}, got {len(outputs)})")
    check_like("allgather", outputs, tensor)
    return (tensor,)


def check_all_gather_single(output: Tensor, tensor: Tensor, size: int) -> None:
    """The output is `size` inputs, one after another along the first dimension."""
    if not _is_whole(output, tensor, size):
        check_all_gather(output.chunk(size), tensor, 0, size)


def check_all_gather_single_coalesced(outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
    """Each output is `size` inputs, one after another along the first dimension."""
    if len(outputs) != len(inputs):
        raise RuntimeError(f"Check failed: outputs.size() == inputs.size() ({len(outputs)} vs. {len(inputs)}). \n")
    if not all(_is_whole(output, tensor, size) for output, tensor in zip(outputs, inputs, strict=True)):
        check_all_gather_coalesced(list(zip(*(output.chunk(size) for output in outputs), strict=False)), inputs, size)


def _is_whole(whole: Tensor, part: Tensor, size: int) -> bool:
    shape = part.shape
    return (
        len(shape) > 0
        and whole.shape == (size * shape[0], *shape[1:])
        and whole.dtype is part.dtype
        and whole.device == part.device
    )


def check_all_gather_coalesced(output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int) -> None:
    """For each rank, a list like the list of inputs."""
    name = "ProcessGroupGloo::allgather_coalesced: "
    if len(output_lists) != size:
        raise RuntimeError(name + "output lists should be equal to world size")
    for outputs in output_lists:
        if len(outputs) != len(inputs):
            raise RuntimeError(f"{name}invalid output size: (expected length {len(inputs)}, got {len(outputs)})")
        for position, (output, tensor) in enumerate(zip(outputs, inputs, strict=True)):
            if output.shape != tensor.shape:
                expected = f"(expected length {sizes(tensor)}, got {sizes(output)})"
                raise RuntimeError(f"{name}invalid size of output tensor at index {position} {expected}")
            if output.dtype is not tensor.dtype:
                expected = f"(expected {tensor.type()}, got {output.type()})"
                raise RuntimeError(f"{name}invalid tensor type at index {position} {expected}")


def check_all_reduce_coalesced(tensors: Sequence[Tensor]) -> None:
    """All tensors have one dtype."""
    if any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
        raise RuntimeError("ProcessGroupGloo::allreduce_coalesced: tensors must all have the same type")


def check_root_list(operation: str, kind: str, tensors: Sequence[Tensor], model: Tensor, size: int) -> None:
    """The root's list in gather and scatter has one tensor for each rank, like the root's own."""
    if (problem := wrong_length(kind, tensors, size)) is not None:
        raise RuntimeError(f"ProcessGroupGloo::{operation}: {problem}")
    check_like(operation, tensors, model)


def check_reduce_scatter(output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
    """One input for each rank; the own one is like the output."""
    if len(inputs) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    if output.shape != inputs[rank].shape:
        both = f"{bare_sizes(output)} vs. {bare_sizes(inputs[rank])}"
        raise RuntimeError(f"Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() ({both}). \n")


def check_reduce_scatter_single(output: Tensor, tensor: Tensor, size: int) -> None:
    """The input is `size` outputs, one after another along the first dimension."""
    if output.dtype is not tensor.dtype:
        types = f"{TYPE_NAMES.get(output.dtype, output.dtype)} vs. {TYPE_NAMES.get(tensor.dtype, tensor.dtype)}"
        raise RuntimeError(f"Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() ({types}). \n")
    if not output.shape or not tensor.shape:
        raise RuntimeError("Check failed: reduce_scatter of a tensor needs at least one dimension \n")  # gloo crashes
    rows, whole = output.shape[0] * size, tensor.shape[0]
    if rows != whole:
        raise RuntimeError(f"Check failed: outputShape[0] * worldSize == inputShape[0] ({rows} vs. {whole}). \n")
    for mine, theirs in zip(output.shape[1:], tensor.shape[1:], strict=False):
        if mine != theirs:
            raise RuntimeError(f"Check failed: outputShape[i] == inputShape[i] ({mine} vs. {theirs}). \n")
    if output.dim() != tensor.dim():
        part = tensor.shape[:0] + torch.Size((output.shape[0], *tensor.shape[1:]))
        raise RuntimeError(f"output with shape {list(output.shape)} doesn't match the broadcast shape {list(part)}")


def check_all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
    """One input and one output for each rank, all alike."""
    for kind, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != size:
            raise RuntimeError(
                f"ProcessGroupGloo::alltoall: {kind} tensor list size {len(tensors)} does not match world size {size}"
            )
    check_like("alltoall", inputs, inputs[0])
    check_like("alltoall", outputs, inputs[0])


def check_all_to_all_single(output: Tensor, tensor: Tensor) -> None:
    """The input is contiguous, and there is a first dimension to split."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    if not tensor.shape or not output.shape:
        raise RuntimeError(
            "ProcessGroupGloo::alltoall: a tensor without dimensions has no rows to split"
        )  # gloo crashes


def _invalid(operation: str, what: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::{operation}: invalid {what}")
