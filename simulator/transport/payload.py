"""The tensors that one rank passes to a call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Payload(NamedTuple):
    """The tensors that one rank passes to a call, and values that belong to them."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    factor: Any = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    gathered: list[Tensor] | None = None
    """The list that receives the gathered tensor of an operation without output tensors."""
    on_nccl: bool = False
    """True if the tensors are reduced with NCCL's arithmetic, False with gloo's."""

    gpu: str | None = None
    """The GPU on which the tensors lie, by its machine and number; None if it is not known or does not matter."""

    order: tuple[int, ...] = ()
    """The order of the dimensions in memory (`memory_order`), if the backend moves memory."""

    def with_copied_inputs(self) -> "Payload":
        """Return a payload with copies of the inputs, so that the caller may change its tensors."""
        return self._replace(inputs=[tensor.detach().clone() for tensor in self.inputs])


def elements_spanned(tensor: Tensor) -> int:
    """Return the number of elements in memory from the first to the last of a tensor's, those between them included."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a dense tensor that is not contiguous, the outermost in memory first; () for others."""
    if elements_spanned(tensor) != tensor.numel() or tensor.is_cuda or tensor.is_contiguous():
        return ()
    strides = {each: tensor.stride(each) for each, size in enumerate(tensor.shape) if size > 1}
    return tuple(sorted(strides, key=strides.__getitem__, reverse=True))


def as_gloo_takes(tensor: Tensor) -> Tensor:
    """Return the elements that follow a tensor's first in memory, as many as it has; an expanded one unchanged."""
    if elements_spanned(tensor) < tensor.numel() or tensor.is_cuda or tensor.is_contiguous():
        return tensor
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(tensor.shape)
