"""Argument checks that torch makes before it calls a backend, or that are equal for all backends."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import index

import torch
from torch import Tensor

TYPE_NAMES = {
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


def check_tensors(schema: str, tensors: Sequence[Tensor]) -> None:
    """Raise if there is no tensor, or if one is sparse, for which only allreduce_ has a kernel. `schema` is the name of
    the operator that torch dispatches."""
    if not tensors:
        raise NotImplementedError(
            "There were no tensor arguments to this function (e.g., you passed an empty list of Tensors), but no "
            f"fallback function is registered for schema c10d::{schema}."
        )
    for tensor in tensors:
        if tensor.layout is not torch.strided and schema != "allreduce_":
            raise missing_kernel_error(schema, tensor)


def handles_error(handles: Sequence[str], own: str) -> str:
    """Return gloo's error for the handles that a group is reconfigured by; "" if they are right."""
    if not handles:
        return "Reconfigure requires at least one handle"
    if len(set(handles)) < len(handles):
        return "Reconfigure handles must be unique"
    if invalid := [each for each in handles if not re.match(r"gloo:-?\d+:-?\d+:\d+:", each)]:
        return f"Invalid Gloo reconfigure handle: {invalid[0]}"
    return "" if own in handles else "Local Gloo reconfigure handle is not part of the new communicator"


def check_root(operation: str, root: int, size: int) -> None:
    """Raise unless the root is a rank of the group."""
    if not 0 <= root < size:
        raise RuntimeError(f"ProcessGroupGloo::{operation}: invalid root rank: {root}")


def check_peer(operation: str, peer: int, size: int) -> None:
    """Raise unless the other rank of a message is in the group. (gloo waits for such a rank forever, or crashes.)"""
    whole_numbers(operation, (peer,))
    if not 0 <= peer < size:
        raise RuntimeError(f"ProcessGroupGloo::{operation}: invalid rank: {peer} (the group has ranks 0 to {size - 1})")


def whole_numbers(operation: str, values: Sequence[int]) -> Sequence[int]:
    """Return the values as integers. Raise if torch's binding would: a tensor is no sequence of integers."""
    with suppress(TypeError):
        if not isinstance(values, Tensor):
            return [index(value) for value in values]
    raise TypeError(f"{operation}(): incompatible function arguments: {values!r}, expected integers")


def time_limit(method: str, timeout: object) -> timedelta:
    """Return a time-out that torch's binding takes: seconds may be a float, but no integer."""
    if isinstance(timeout, float):
        return timedelta(seconds=timeout)
    if not isinstance(timeout, timedelta):
        raise TypeError(f"{method}(): incompatible function arguments: timeout is {timeout!r}, expected a timedelta")
    return timeout


def splits_error(
    output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], size: int
) -> str | None:
    """Return a backend's error for the split sizes of all_to_all_single (of gloo's worker thread); None if they fit."""
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


def check_tag(operation: str, tag: int) -> None:
    """Raise unless torch's binding can convert the tag to a C int."""
    whole_numbers(operation, (tag,))
    if not -(2**31) <= index(tag) < 2**31:
        raise TypeError(f"{operation}(): incompatible function arguments: tag {tag} does not fit into a C int")


def check_same_count(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise unless there are as many output tensors as input tensors."""
    if len(outputs) != len(inputs):
        raise RuntimeError("requires input/output tensor lists to have the same length")


def difference_from_model(tensors: Iterable[Tensor], model: Tensor) -> str | None:
    """Return a text on how a tensor's dtype, device, layout or shape differs from that of `model`; None if not."""
    dtype, device, shape, layout = model.dtype, model.device, model.shape, model.layout
    for position, tensor in enumerate(tensors):
        if tensor.dtype is not dtype or tensor.device != device or tensor.layout is not layout:
            expected, found = _tensor_options_text(model), _tensor_options_text(tensor)
            return f"tensor type at index {position} (expected {expected}, got {found})"
        if tensor.shape != shape:
            return f"tensor size at index {position} (expected {shape_text(model)}, got {shape_text(tensor)})"
    return None


def lists_error(
    kinds: tuple[str, str], lists: Sequence[Sequence[Tensor]], own: Sequence[Tensor], size: int, *, is_root: bool
) -> str | None:
    """Return a text that says what is wrong with the lists in gather or scatter: one with a tensor for each rank on the
    root, none elsewhere. Every rank has one tensor of its `own`. `kinds`: what these two are, input or output."""
    mine, kind = kinds
    if len(own) != 1:
        return f"requires a single-element {mine} tensor list"
    if not is_root:
        return f"requires empty {kind} on non-root" if lists else None
    if len(lists) != 1:
        return f"requires a single-element {kind} list containing a list with {size} tensors."
    if len(lists[0]) != size:
        text = f"Incorrect {kind} list size {len(lists[0])}. {kind.capitalize()} list size should be {size}, same as"
        return f"{text} size of the process group."
    if (problem := difference_from_model(lists[0], own[0])) is not None:
        return f"invalid {problem}"
    return None


def missing_kernel_error(schema: str, tensor: Tensor) -> NotImplementedError:
    """Return the error of torch's dispatcher for a tensor layout for which no backend has an operator."""
    backend = {torch.sparse_coo: "Sparse", torch.sparse_csr: "SparseCsr"}.get(tensor.layout, "SparseCsr")
    device = "CUDA" if tensor.is_cuda else "CPU"
    return NotImplementedError(f"Could not run 'c10d::{schema}' with arguments from the '{backend}{device}' backend.")


def scalar_name(dtype: torch.dtype) -> str:
    """Return the C++ name of a dtype (c10::ScalarType), such as `Half`."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def layout_name(tensor: Tensor) -> str:
    """Return the C++ name of a tensor's layout (c10::Layout), such as `Strided`."""
    return {torch.strided: "Strided", torch.sparse_coo: "Sparse"}.get(tensor.layout, str(tensor.layout))


def shape_text(tensor: Tensor) -> str:
    """Return a shape as text, such as `(2, 3)`."""
    return f"({bare_shape_text(tensor)})"


def bare_shape_text(tensor: Tensor) -> str:
    """Return a shape as text, such as `2, 3`."""
    return ", ".join(map(str, tensor.shape))


def _tensor_options_text(tensor: Tensor) -> str:
    dtype = TYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
    return (
        f"TensorOptions(dtype={dtype}, device={tensor.device}, layout={layout_name(tensor)}, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )
