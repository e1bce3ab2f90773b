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
    """Takes an operation, a dtype and a reduction; returns the error that the wait raises, None if supported."""

    def check_gather_single(self, output: Tensor | None, tensor: Tensor, size: int) -> None:
        """Raise: gloo has no gather into one tensor."""
        raise RuntimeError("Backend gloo does not support gather_single")

    def check_all_reduce(self, tensors: Sequence[Tensor], reduction: str) -> None:
        """Check that the tensors of an all_reduce are alike. A sparse tensor needs COO layout and the reduction SUM."""
        if len(tensors) != 1:
            _check_layouts("allreduce", tensors)
            check_equal_type_and_shape("allreduce", tensors[1:], tensors[0])
        tensor = tensors[0]
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
        """Check that a message is one contiguous tensor and its tag at least 0."""
        if len(tensors) != 1:
            raise RuntimeError("ProcessGroupGloo::send takes a single tensor")
        if tensors[0].layout is not torch.strided or not tensors[0].is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")

    def check_any_source(self) -> None:
        """Do nothing: gloo can receive from any source."""

    def check_reduce(self, tensors: Sequence[Tensor], root_tensor: int) -> None:
        """Check that there is one tensor, in any memory layout."""
        _check_root_tensor("reduce", tensors, root_tensor)
        if len(tensors) != 1:
            raise _error("reduce", "requires a single-element tensor list")
        _check_dense("reduce", tensors)

    def check_broadcast(self, tensors: Sequence[Tensor], root_tensor: int) -> None:
        """Check that the tensors are alike, in any memory layout, and that the number of one of them is the root's."""
        _check_root_tensor("broadcast", tensors, root_tensor)
        _check_dense("broadcast", tensors)
        check_equal_type_and_shape("broadcast", tensors[1:], tensors[0])

    def check_all_gather(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], rank: int, size: int
    ) -> Sequence[Tensor]:
        """Check that an all_gather has an output for each input of each rank, with the dtype and shape of the first."""
        if not inputs:
            raise _error("allgather", "requires non-empty input tensor list")
        if len(output_lists) != len(inputs):
            raise _error("allgather", "requires input/output tensor lists to have the same length")
        expected = len(inputs) * size
        for position, outputs in enumerate(output_lists):
            if len(outputs) != expected:
                expectation = f"(expected length {expected}, got {len(outputs)})"
                raise _error("allgather", f"invalid output tensor list at index {position} {expectation}")
        _check_dense("allgather", inputs)
        for tensors in (inputs, *output_lists):
            check_equal_type_and_shape("allgather", tensors, inputs[0])
        return inputs

    def check_all_gather_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check that the output has the size of all ranks' inputs, concatenated along the first dimension."""
        if not _is_whole(output, tensor, size):
            self.check_all_gather([output.chunk(size)], [tensor], 0, size)

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
        if not inputs:
            raise RuntimeError(name + "requires non-empty input tensor list")
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
        """Check that all tensors of an all_reduce_coalesced have one dtype, and that there are some."""
        _check_layouts("allreduce_coalesced", tensors)
        if any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
            raise _error("allreduce_coalesced", "tensors must all have the same type")
        if tensors[0].layout is not torch.strided:
            raise _error("allreduce_coalesced", "unsupported layout")

    def check_lists(self, operation: str, problem: str | None) -> None:
        """Raise if there is a problem with the lists of a gather or scatter."""
        if problem is not None:
            raise _error(operation, problem)

    def check_reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int, size: int) -> None:
        """Check that a reduce_scatter has an input for each rank, and that the caller's is like the output."""
        if len(outputs) != 1:
            raise RuntimeError("reduce_scatter only supports 1 output")
        output = outputs[0]
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
        raise _error(operation, f"invalid {problem}")


def _check_layouts(operation: str, tensors: Sequence[Tensor]) -> None:
    if not tensors:
        raise _error(operation, "requires non-empty tensor list")
    first, *others = map(arguments.layout_name, tensors)
    for position, name in enumerate(others, 1):
        if name != first:
            raise _error(operation, f"invalid tensor layout at index {position} (expected {first}, got {name})")


def _check_dense(operation: str, tensors: Sequence[Tensor]) -> None:
    """Raise if the first tensor is sparse. (Where torch dispatches a call, it has looked at all of them.)"""
    if tensors[0].layout is not torch.strided:
        raise _error(operation, "only supports dense tensors")


def _check_root_tensor(operation: str, tensors: Sequence[Tensor], number: int) -> None:
    if not 0 <= number < len(tensors):
        raise _error(operation, f"invalid root tensor: {number}")


def _is_whole(whole: Tensor, part: Tensor, size: int) -> bool:
    shape = part.shape
    return (
        len(shape) > 0
        and whole.shape == (size * shape[0], *shape[1:])
        and whole.dtype is part.dtype
        and whole.device == part.device
    )


def _error(operation: str, text: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::{operation}: {text}")
