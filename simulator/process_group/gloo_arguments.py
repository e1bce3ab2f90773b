"""Argument checks of gloo, with gloo's error texts (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).

Where gloo crashes the process or hangs, the text is ddpsim's own. A `check_*` function raises where gloo raises when
the call is issued. `wait_error` returns an error of gloo's worker thread, which a wait for the call raises.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

from ddpsim.simulator.process_group import arguments
from ddpsim.simulator.process_group.arguments import TYPE_NAMES, scalar_name

_SUPPORTED_DTYPES = frozenset(
    "float16 bfloat16 float32 float64 int8 uint8 int32 int64 bool complex64 complex128".split()  # noqa: SIM905
)
"""Dtypes that gloo's collectives support. Point-to-point messages move bytes and may have any dtype."""

_BITWISE = frozenset({"BAND", "BOR", "BXOR"})


@cache
def _worker_error(operation: str, dtype: str, reduction: str | None) -> str | None:
    """Return the error of gloo's worker thread for a dtype, alone or with a reduction; None if gloo supports it."""
    dtype = dtype.removeprefix("sparse ")
    is_complex = dtype.startswith("complex")
    if dtype not in _SUPPORTED_DTYPES or (is_complex and operation == "gather"):
        return "Invalid scalar type"
    if reduction is None:
        return None
    if reduction == "PREMUL_SUM":
        return "Cannot use ReduceOp.PREMUL_SUM with Gloo"
    is_fractional = is_complex or "float" in dtype
    if is_complex and reduction not in ("SUM", "AVG"):
        return f"{operation} does not support ReduceOp.{reduction} on complex tensors"
    if reduction in _BITWISE and is_fractional:
        return f"Cannot use ReduceOp.{reduction} with non-integral dtype"
    if reduction == "AVG" and not is_fractional:
        return f"result type Float can't be cast to the desired output type {scalar_name(getattr(torch, dtype))}"
    return None


class GlooRules:
    """gloo's argument checks; another backend overrides them. Each raises what the backend raises at the call.

    Tensors may have any shape and dtype. `size` is the number of ranks in the group, `rank` the caller's number in it.
    """

    wait_error: Callable[[str, str, str | None], str | None] = staticmethod(_worker_error)
    """Takes an operation, a dtype and a reduction, and returns the error that a wait for the call raises; None if these
    are supported."""

    def check_gather_single(self, output: Tensor | None, tensor: Tensor, size: int) -> None:
        """Raise: gloo has no gather into one tensor."""
        raise RuntimeError("Backend gloo does not support gather_single")

    def check_all_reduce(self, tensor: Tensor, reduction: str) -> None:
        """Check the tensor of an all_reduce. A sparse tensor needs COO layout and the reduction SUM."""
        if tensor.layout is torch.strided:
            return
        if tensor.layout is not torch.sparse_coo:
            raise arguments.missing_kernel_error("allreduce_", tensor)
        if reduction != "SUM":
            raise RuntimeError(
                "ProcessGroupGloo::allreduce: unsupported reduction operation (allreduce of sparse tensors only works "
                "with ReduceOp.SUM)"
            )
        if tensor.dtype in (torch.float16, torch.bool):
            raise NotImplementedError(f"\"cadd_sparse\" not implemented for '{scalar_name(tensor.dtype)}'")

    def check_message(self, tensors: Sequence[Tensor], tag: int) -> None:
        """Check that a message's tensor is contiguous and its tag at least 0."""
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise RuntimeError("input tensor has to be contiguous")

    def check_any_source(self) -> None:
        """Do nothing: gloo can receive from any source."""

    def check_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: gloo takes any memory layout for a reduce or broadcast."""

    def check_all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, rank: int, size: int) -> Sequence[Tensor]:
        """Check that an all_gather has one output tensor for each rank, with the input's dtype and shape."""
        if len(outputs) != size:
            raise _invalid_error(
                "allgather", f"output tensor list at index 0 (expected length {size}, got {len(outputs)})"
            )
        check_equal_type_and_shape("allgather", outputs, tensor)
        return (tensor,)

    def check_all_gather_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check that the output has the size of all ranks' inputs, concatenated along the first dimension."""
        if not _is_whole(output, tensor, size):
            self.check_all_gather(output.chunk(size), tensor, 0, size)

    def check_all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check that each output has the size of all ranks' inputs, concatenated along the first dimension."""
        if len(outputs) != len(inputs):
            raise RuntimeError(f"Check failed: outputs.size() == inputs.size() ({len(outputs)} vs. {len(inputs)}). \n")
        if not all(_is_whole(output, tensor, size) for output, tensor in zip(outputs, inputs, strict=True)):
            output_lists = list(zip(*(output.chunk(size) for output in outputs), strict=False))
            self.check_all_gather_coalesced(output_lists, inputs, size)

    def check_all_gather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """Check that there is a list of output tensors for each rank, with the dtypes and shapes of the input list."""
        name = "ProcessGroupGloo::allgather_coalesced: "
        if len(output_lists) != size:
            raise RuntimeError(name + "output lists should be equal to world size")
        for outputs in output_lists:
            if len(outputs) != len(inputs):
                raise RuntimeError(f"{name}invalid output size: (expected length {len(inputs)}, got {len(outputs)})")
            for position, (output, tensor) in enumerate(zip(outputs, inputs, strict=True)):
                if output.shape != tensor.shape:
                    expected = f"(expected length {arguments.shape_text(tensor)}, got {arguments.shape_text(output)})"
                    raise RuntimeError(f"{name}invalid size of output tensor at index {position} {expected}")
                if output.dtype is not tensor.dtype:
                    expected = f"(expected {tensor.type()}, got {output.type()})"
                    raise RuntimeError(f"{name}invalid tensor type at index {position} {expected}")

    def check_all_reduce_coalesced(self, tensors: Sequence[Tensor]) -> None:
        """Check that all tensors of an all_reduce_coalesced have one dtype."""
        if any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
            raise RuntimeError("ProcessGroupGloo::allreduce_coalesced: tensors must all have the same type")

    def check_root_list(self, operation: str, kind: str, tensors: Sequence[Tensor], model: Tensor, size: int) -> None:
        """Check that the root's list in gather and scatter has a tensor for each rank, with equal dtype and shape."""
        if (problem := arguments.list_length_error(kind, tensors, size)) is not None:
            raise RuntimeError(f"ProcessGroupGloo::{operation}: {problem}")
        check_equal_type_and_shape(operation, tensors, model)

    def check_reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
        """Check that a reduce_scatter has an input for each rank, and that the caller's is like the output."""
        if len(inputs) != size:
            raise RuntimeError("invalid input tensor list size, must be world size")
        if output.shape != inputs[rank].shape:
            both = f"{arguments.bare_shape_text(output)} vs. {arguments.bare_shape_text(inputs[rank])}"
            raise RuntimeError(f"Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() ({both}). \n")

    def check_reduce_scatter_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check that the input has the size of all ranks' outputs, concatenated along the first dimension."""
        if output.dtype is not tensor.dtype:
            types = f"{TYPE_NAMES.get(output.dtype, output.dtype)} vs. {TYPE_NAMES.get(tensor.dtype, tensor.dtype)}"
            raise RuntimeError(f"Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() ({types}). \n")
        if not output.shape or not tensor.shape:  # gloo crashes here
            raise RuntimeError("Check failed: reduce_scatter of a tensor needs at least one dimension \n")
        rows, whole = output.shape[0] * size, tensor.shape[0]
        if rows != whole:
            raise RuntimeError(f"Check failed: outputShape[0] * worldSize == inputShape[0] ({rows} vs. {whole}). \n")
        for mine, theirs in zip(output.shape[1:], tensor.shape[1:], strict=False):
            if mine != theirs:
                raise RuntimeError(f"Check failed: outputShape[i] == inputShape[i] ({mine} vs. {theirs}). \n")
        if output.dim() != tensor.dim():
            part = tensor.shape[:0] + torch.Size((output.shape[0], *tensor.shape[1:]))
            raise RuntimeError(f"output with shape {list(output.shape)} doesn't match the broadcast shape {list(part)}")

    def check_all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check that an all_to_all has one input and one output for each rank, all of one dtype and shape."""
        for kind, tensors in (("input", inputs), ("output", outputs)):
            if len(tensors) != size:
                problem = f"{kind} tensor list size {len(tensors)} does not match world size {size}"
                raise RuntimeError(f"ProcessGroupGloo::alltoall: {problem}")
        check_equal_type_and_shape("alltoall", inputs, inputs[0])
        check_equal_type_and_shape("alltoall", outputs, inputs[0])

    def check_all_to_all_single(self, output: Tensor, tensor: Tensor) -> None:
        """Check that the input of all_to_all_single is contiguous and has a first dimension to split."""
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        if not tensor.shape or not output.shape:  # gloo crashes here
            raise RuntimeError("ProcessGroupGloo::alltoall: a tensor without dimensions has no rows to split")


def check_equal_type_and_shape(operation: str, tensors: Iterable[Tensor], model: Tensor) -> None:
    """Check that every tensor has the dtype, the device and the shape of `model`."""
    if (problem := arguments.difference_from_model(tensors, model)) is not None:
        raise _invalid_error(operation, problem)


def _is_whole(whole: Tensor, part: Tensor, size: int) -> bool:
    shape = part.shape
    return (
        len(shape) > 0
        and whole.shape == (size * shape[0], *shape[1:])
        and whole.dtype is part.dtype
        and whole.device == part.device
    )


def _invalid_error(operation: str, what: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::{operation}: invalid {what}")
