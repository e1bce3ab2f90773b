"""The tensors that one rank passes to a call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

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

    def with_copied_inputs(self) -> "Payload":
        """Return a payload with copies of the inputs, so that the caller may change its tensors."""
        return self._replace(inputs=[tensor.detach().clone() for tensor in self.inputs])
