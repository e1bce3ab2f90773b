"""What one rank brings to a call, and takes from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Payload(NamedTuple):
    """The tensors one rank brings to a call."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    factor: Any = None
    """The factor of a PREMUL_SUM."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    gathered: list[Tensor] | None = None
    """Where an operation without output tensors of its own leaves what it gathered, as one tensor."""

    def copied(self) -> Payload:
        """With inputs of its own, so that the caller may change its tensors."""
        return self._replace(inputs=[tensor.detach().clone() for tensor in self.inputs])
