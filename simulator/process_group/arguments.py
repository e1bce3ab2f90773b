"""Argument checks: what a real backend refuses, in its own words.

The default group stands for gloo, so gloo's texts are used (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), except
where gloo crashes the process or hangs. `check_*` functions raise where gloo does, when the call is issued; what gloo
finds out only on its worker thread comes back as a value of `refusal`, for the work to raise when it is waited for.

Not refused, although gloo does: PREMUL_SUM, which NCCL has; and averages of whole numbers on a group that was asked for
with NCCL, which divides towards zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from operator import index

import torch
from torch import Tensor

_TAKEN = frozenset(
    "float16 bfloat16 float32 float64 int8 uint8 int32 int64 bool complex64 complex128".split()  # noqa: SIM905
)
"""What collectives take. Point-to-point moves bytes and takes everything."""

_TYPE_NAMES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int32: "int",
    torch.int64: "long int",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
"""C++ names of element types (caffe2::TypeMeta)."""

_BITWISE = frozenset({"BAND", "BOR", "BXOR"})


@cache
def refusal(operation: str, dtype: str, reduction: str | None, *, by_nccl: bool = False) -> str | None:
    """What gloo's worker thread says to a dtype, alone or with a reduction; None if it, or NCCL, does the work."""
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
    if reduction == "AVG" and not is_fractional and (dtype == "bool" or not by_nccl):
        return f"result type Float can't be cast to the desired output type {_scalar_name(getattr(torch, dtype))}"
    return None


def all_to_all_single_refusal(
    output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], size: int
) -> str | None:
    """What gloo's worker thread says to the splits of all_to_all_single; None if they fit."""
    if not output_splits and not input_splits and output.numel() != tensor.numel():
        return "[enforce fail at gloo/alltoall.cc] in->size == out->size. "
    for splits, whole in ((input_splits, tensor), (output_splits, output)):
        if not splits and whole.shape[0] % size:
            # NCCL's text: gloo cuts in the middle of a row.
            return "Tensor's dim 0 does not divide equally across group size"
        if splits and len(splits) != size:
            return "Number of tensor splits not equal to group size"
        if splits and sum(splits) != whole.shape[0]:
            return "Split sizes doesn't match total dim 0 size"
    return None


def check_sparse_reduction(tensor: Tensor, reduction: str) -> None:
    """A sparse all_reduce is for COO tensors, and can only sum."""
    if tensor.layout is not torch.sparse_coo:
        raise _no_kernel("allreduce_", tensor)
    if reduction != "SUM":
        raise RuntimeError(
            "ProcessGroupGloo::allreduce: unsupported reduction operation (allreduce of sparse tensors only works with "
            "ReduceOp.SUM)"
        )
    if tensor.dtype in (torch.float16, torch.bool):
        raise NotImplementedError(f"\"cadd_sparse\" not implemented for '{_scalar_name(tensor.dtype)}'")


def check_tensors(schema: str, tensors: Sequence[Tensor]) -> None:
    """There is a tensor, and none is sparse. `schema` is the name of the operator that torch dispatches."""
    if not tensors:
        raise NotImplementedError(
            "There were no tensor arguments to this function (e.g., you passed an empty list of Tensors), but no "
            f"fallback function is registered for schema c10d::{schema}."
        )
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise _no_kernel(schema, tensor)


def check_root(operation: str, root: int, size: int) -> None:
    """The root is a rank of the group."""
    if not 0 <= root < size:
        raise RuntimeError(f"ProcessGroupGloo::{operation}: invalid root rank: {root}")


def check_peer(operation: str, peer: int, size: int) -> None:
    """The other rank of a message is in the group. (gloo waits for it in vain, or crashes.)"""
    check_whole_numbers(operation, (peer,))
    if not 0 <= peer < size:
        raise RuntimeError(f"ProcessGroupGloo::{operation}: invalid rank: {peer} (the group has ranks 0 to {size - 1})")


def check_whole_numbers(operation: str, values: Sequence[object]) -> None:
    """Torch's binding takes the values for integers."""
    for value in values:
        try:
            index(value)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{operation}(): incompatible function arguments: {value!r} is no integer") from None


def check_message(schema: str, tensors: Sequence[Tensor], tag: int) -> None:
    """A message is contiguous, and its tag a C int of 0 or more."""
    check_tensors(schema, tensors)
    operation = schema.rstrip("_")
    check_whole_numbers(operation, (tag,))
    if not -(2**31) <= tag < 2**31:
        raise TypeError(f"{operation}(): incompatible function arguments: tag {tag} does not fit into a C int")
    if tag < 0:
        raise RuntimeError("Tag must be nonnegative")
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")


def check_like(operation: str, tensors: Iterable[Tensor], model: Tensor) -> None:
    """Every tensor has the dtype, the device and the shape of `model`."""
    dtype, device, shape = model.dtype, model.device, model.shape
    for position, tensor in enumerate(tensors):
        if tensor.dtype is not dtype or tensor.device != device:
            raise _invalid(
                operation, f"tensor type at index {position} (expected {_options(model)}, got {_options(tensor)})"
            )
        if tensor.shape != shape:
            raise _invalid(
                operation, f"tensor size at index {position} (expected {_sizes(model)}, got {_sizes(tensor)})"
            )


def check_all_gather(outputs: Sequence[Tensor], tensor: Tensor, size: int) -> None:
    """One output for each rank, like the input."""
    if len(outputs) != size:
        raise _invalid("allgather", f"output tensor list at index 0 (expected length {size}, got {len(outputs)})")
    check_like("allgather", outputs, tensor)


def check_all_gather_single(output: Tensor, tensor: Tensor, size: int) -> None:
    """The output is `size` inputs, one after another along the first dimension."""
    if not _is_whole(output, tensor, size):
        check_all_gather(output.chunk(size), tensor, size)


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
                expected = f"(expected length {_sizes(tensor)}, got {_sizes(output)})"
                raise RuntimeError(f"{name}invalid size of output tensor at index {position} {expected}")
            if output.dtype is not tensor.dtype:
                expected = f"(expected {tensor.type()}, got {output.type()})"
                raise RuntimeError(f"{name}invalid tensor type at index {position} {expected}")


def check_same_dtype(operation: str, tensors: Sequence[Tensor]) -> None:
    """All tensors have one dtype."""
    if any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
        raise RuntimeError(f"ProcessGroupGloo::{operation}: tensors must all have the same type")


def check_list_of_all(operation: str, kind: str, tensors: Sequence[Tensor], size: int) -> None:
    """The root's list in gather and scatter has one tensor for each rank."""
    if len(tensors) != size:
        raise RuntimeError(
            f"ProcessGroupGloo::{operation}: Incorrect {kind} list size {len(tensors)}. {kind.capitalize()} list size "
            f"should be {size}, same as size of the process group."
        )


def check_reduce_scatter(output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
    """One input for each rank; the own one is like the output."""
    if len(inputs) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    if output.shape != inputs[rank].shape:
        sizes = f"{_bare_sizes(output)} vs. {_bare_sizes(inputs[rank])}"
        raise RuntimeError(f"Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() ({sizes}). \n")


def check_same_count(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """As many outputs as inputs."""
    if len(outputs) != len(inputs):
        raise RuntimeError("requires input/output tensor lists to have the same length")


def check_reduce_scatter_single(output: Tensor, tensor: Tensor, size: int) -> None:
    """The input is `size` outputs, one after another along the first dimension."""
    if output.dtype is not tensor.dtype:
        types = f"{_TYPE_NAMES.get(output.dtype, output.dtype)} vs. {_TYPE_NAMES.get(tensor.dtype, tensor.dtype)}"
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


def _no_kernel(schema: str, tensor: Tensor) -> NotImplementedError:
    backend = {torch.sparse_coo: "Sparse", torch.sparse_csr: "SparseCsr"}.get(tensor.layout, "SparseCsr")
    device = "CUDA" if tensor.is_cuda else "CPU"
    return NotImplementedError(f"Could not run 'c10d::{schema}' with arguments from the '{backend}{device}' backend.")


def _invalid(operation: str, what: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::{operation}: invalid {what}")


def _scalar_name(dtype: torch.dtype) -> str:
    """What C++ calls a dtype (c10::ScalarType), as in `Half`."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def _sizes(tensor: Tensor) -> str:
    return f"({_bare_sizes(tensor)})"


def _bare_sizes(tensor: Tensor) -> str:
    return ", ".join(map(str, tensor.shape))


def _options(tensor: Tensor) -> str:
    dtype = _TYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
    return (
        f"TensorOptions(dtype={dtype}, device={tensor.device}, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )
