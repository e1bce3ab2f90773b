"""Argument checks of NCCL: what torch rejects before it calls NCCL (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).

Every error is raised when the call is issued. NCCL is stricter than gloo about memory layout, and freer about shapes:
it counts elements, and gathers and scatters parts of different sizes. Where torch checks nothing, so that NCCL would
read or write beyond a tensor, the text is ours. One case is allowed here although NCCL rejects it: a CPU tensor, which
a program without a GPU has instead.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ddpsim.simulator.process_group import arguments
from ddpsim.simulator.process_group.gloo_arguments import GlooRules

_TAKEN = frozenset(
    "float16 bfloat16 float32 float64 int8 uint8 int32 int64 bool complex64 complex128 "  # noqa: SIM905
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split()
)
"""Dtypes that NCCL supports (getNcclDataType); complex numbers are sent as pairs."""

_NOT_REDUCED = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz"})
_BITWISE = frozenset({"BAND", "BOR", "BXOR"})


class NcclRules(GlooRules):
    """NCCL's argument checks."""

    @staticmethod
    def wait_error(operation: str, dtype: str, reduction: str | None) -> None:
        """Return None: NCCL has no late errors, but raises at once for what it does not support."""
        _check_dtype(dtype)
        if reduction is not None:
            _check_reduction(operation, dtype, reduction)

    def check_gather_single(self, output: Tensor | None, tensor: Tensor, size: int) -> None:
        """Check that the root's output has as many elements as all ranks' inputs together; it is None elsewhere."""
        if output is None:
            _check_contiguous(tensor)
        else:
            self.check_all_gather_single(output, tensor, size)

    def check_all_reduce(self, tensors: Sequence[Tensor], reduction: str) -> None:
        """Check that an all_reduce has one tensor, which is dense and whose memory is without gaps."""
        tensor = _single(tensors)
        if tensor.layout is not torch.strided:
            raise RuntimeError(
                "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
            )
        _check_contiguous(tensor)

    def check_all_reduce_coalesced(self, tensors: Sequence[Tensor]) -> None:
        """Check that the tensors of an all_reduce_coalesced have one dtype, and that each has memory without gaps."""
        for tensor in tensors:
            if tensor.dtype is not tensors[0].dtype:
                raise TypeError("Tensors must have identical type")
            if not torch.ops.aten.is_non_overlapping_and_dense.default(tensor):
                raise ValueError("Tensors must be non-overlapping and dense")

    def check_reduce(self, tensors: Sequence[Tensor], root_tensor: int) -> None:
        """Check that a reduce or broadcast has one tensor, whose memory is without gaps."""
        _check_contiguous(_single(tensors))

    check_broadcast = check_reduce

    def check_all_gather(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], rank: int, size: int
    ) -> Sequence[Tensor]:
        """Check that an all_gather has one output for each rank, with as many elements as that rank's tensor."""
        tensor, outputs = _single(inputs), output_lists[0]
        _check_contiguous(tensor)
        _check_list("allgather", "output", outputs, size)
        if _same_dtype_and_shape(outputs):
            _check_elements("allgather", "outputs", outputs[0], "input", tensor)
            return (tensor,)
        if outputs[rank].numel() != tensor.numel():
            raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")
        return outputs

    def check_all_gather_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check that the output has as many elements as all ranks' inputs together, in any shape."""
        _check_contiguous(tensor, output)
        if output.dtype is not tensor.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if tensor.numel() * size != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")

    def check_all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check that each output has as many elements as all ranks' inputs together."""
        arguments.check_same_count(outputs, inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            self.check_all_gather_single(output, tensor, size)

    def check_all_gather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """Raise: NCCL has no all_gather_coalesced."""
        raise NotImplementedError("ProcessGroupNCCL does not support allgather_coalesced")

    def check_lists(self, operation: str, problem: str | None) -> None:
        """Raise if there is a problem with the lists of a gather or scatter."""
        if problem is not None:
            raise ValueError(f"ProcessGroupNCCL::{operation}: {problem}")

    def check_reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int, size: int) -> None:
        """Check that a reduce_scatter has an input for each rank, the caller's with as many elements as the output."""
        output = _single(outputs)
        _check_contiguous(output)
        _check_list("reduce_scatter", "input", inputs, size)
        if _same_dtype_and_shape(inputs):
            _check_elements("reduce_scatter", "inputs", inputs[0], "output", output)
        elif inputs[rank].numel() != output.numel():
            raise ValueError("Tensor input and output of _reduce_oop must have the same number of elements ")

    def check_reduce_scatter_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check that the input has as many elements as all ranks' outputs together, in any shape."""
        _check_contiguous(tensor, output)
        if output.dtype is not tensor.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if tensor.numel() != output.numel() * size:
            raise ValueError("input tensor must be the same size as output size times world size")

    def check_all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check that an all_to_all has one input and one output for each rank, of any length."""
        _check_list("alltoall", "input", inputs, size)
        _check_list("alltoall", "output", outputs, size)

    def check_all_to_all_single(self, output: Tensor, tensor: Tensor) -> None:
        """Check that both tensors are without gaps in memory and have a first dimension to split."""
        _check_contiguous(tensor, output)
        if not tensor.shape or not output.shape:
            raise ValueError("ProcessGroupNCCL::alltoall_base: a tensor without dimensions has no rows to split")

    def check_message(self, tensors: Sequence[Tensor], tag: int) -> None:
        """Check the dtype of a message's tensor. torch only warns if it is not contiguous; NCCL ignores the tag."""
        for tensor in tensors:
            _check_dtype(str(tensor.dtype).removeprefix("torch."))

    def check_any_source(self) -> None:
        """Raise: NCCL needs the sender's rank."""
        raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")


@cache
def _check_dtype(dtype: str) -> None:
    if dtype not in _TAKEN:
        name = arguments.scalar_name(getattr(torch, dtype.removeprefix("sparse ")))
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")


@cache
def _check_reduction(operation: str, dtype: str, reduction: str) -> None:
    if dtype in _NOT_REDUCED:
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")
    if dtype.startswith("complex") and reduction not in ("SUM", "AVG", "PREMUL_SUM"):
        raise RuntimeError(f"{operation} does not support {reduction} on complex tensors")
    if reduction in _BITWISE:
        raise ValueError(f"Cannot use ReduceOp.{reduction} with NCCL")
    if dtype == "bool" and reduction == "AVG":
        raise TypeError("Cannot use ReduceOp.AVG with Boolean inputs")


def _single(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise RuntimeError("Expecting one tensor only but got multiple.")
    return tensors[0]


def _check_contiguous(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_contiguous() and not _is_channels_last(tensor):
            raise ValueError("Tensors must be contiguous")


def _is_channels_last(tensor: Tensor) -> bool:
    """True for a tensor in channels-last memory format, which torch suggests besides contiguous
    (suggest_memory_format)."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _check_list(operation: str, kind: str, tensors: Sequence[Tensor], size: int) -> None:
    if len(tensors) != size:
        raise ValueError(
            f"ProcessGroupNCCL::{operation}: the {kind} list has length {len(tensors)}, expected {size}, the size of "
            "the group (NCCL does not notice, and goes beyond it)"
        )


def _check_elements(operation: str, many: str, tensor: Tensor, one: str, own: Tensor) -> None:
    if tensor.numel() != own.numel():
        raise ValueError(
            f"ProcessGroupNCCL::{operation}: the {many} have {tensor.numel()} elements each, the {one} has "
            f"{own.numel()}, expected as many (NCCL does not notice, and goes beyond them)"
        )


def _same_dtype_and_shape(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.shape == tensors[0].shape for tensor in tensors)
