"""One flat tensor that holds all gradients of a module: whether it does, and whether its sum becomes the gradients.

How many elements a tensor has says nothing: a histogram may have as many. It holds the gradients if its contents are
theirs when the call is issued, as they are or divided by how many ranks there are. Even then a program may only look at
the sum, as for a norm; parameters are replicas if the gradients hold it before they are used, as it is or scaled.

The same holds of one flat tensor of the parameters themselves, by which a program averages them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from ddpsim.simulator.replicas.replica_tensors import Named
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.transport.modes import without_modes

_ROUNDINGS = 8
"""A gradient that was scaled may be off by so many units in the last place of its type."""


Of = Callable[[Named], Tensor | None]
"""What of a parameter is meant."""


def gradient_of(parameter: Named) -> Tensor | None:
    """Return the gradient of a parameter."""
    return parameter.tensor.grad


def value_of(parameter: Named) -> Tensor | None:
    """Return the parameter itself."""
    return parameter.tensor


class FlatGradients:
    """A flat tensor that one rank passed to a call: all gradients of a module, or all of its parameters."""

    def __init__(
        self, pending: Pending, tensor: Tensor, parameters: Sequence[Named], before: Tensor, of: Of = gradient_of
    ) -> None:
        """`tensor` is the rank's own; `before` are the gradients when the call is issued, one after the other."""
        self.pending = pending
        self.parameters = parameters
        self.of = of
        self.size = len(pending.members)  # as ranks that are processes do not have them later
        self._tensor = tensor
        self._before = before
        self._written = _written(parameters, of)

    def is_applied(self) -> bool:
        """True if the gradients, or parameters, hold the sum now, as it is or scaled.

        Gradients that are as they were tell nothing, unless they were written: those of the ranks may be equal.
        """
        if not self.pending.is_complete:
            return False
        with torch.no_grad(), without_modes():
            now = _together(self.parameters, self.of)
            if now is None or not now.any():
                return False
            shares = _equal_shares(now, self._tensor, self.size)
            if not _same(now, self._before):
                return shares or is_scaled(now, self._tensor)
            is_written = self._written != _written(self.parameters, self.of)
            return shares and (is_written or _lie_in(self._tensor, self.parameters, self.of))


def brought(
    pending: Pending, tensor: Tensor, content: Tensor, parameters: Sequence[Named], of: Of = gradient_of
) -> FlatGradients | None:
    """A flat tensor of a call that is being issued, if its content is the gradients of these parameters, or these."""
    if not _is_plain(tensor) or not tensor.is_floating_point():
        return None
    with torch.no_grad(), without_modes():
        before = _together(parameters, of)
        if before is None or before.numel() != tensor.numel():
            return None
        if not _lie_in(tensor, parameters, of) and not _equal_shares(content, before, len(pending.members)):
            return None
        return FlatGradients(pending, tensor, parameters, before, of)


def _equal_shares(tensor: Tensor, whole: Tensor, size: int) -> bool:
    """True if a tensor is another one, or that divided by `size`."""
    if whole.dtype != tensor.dtype and _same(tensor, (whole / size).to(tensor.dtype)):
        return True  # divided before it was made small
    whole = whole.to(tensor.dtype)
    return any(_same(tensor, each) for each in (whole, whole / size, whole * (1 / size)))


def is_scaled(tensor: Tensor, whole: Tensor) -> bool:
    """True if a tensor is another one times some number above zero."""
    coarse = max(torch.finfo(tensor.dtype).eps, torch.finfo(whole.dtype).eps)
    one, other = tensor.double(), whole.double()
    factor = float(one.dot(other) / other.dot(other))
    return factor > 0 and torch.allclose(one, other * factor, rtol=_ROUNDINGS * coarse, atol=0)


def _together(parameters: Sequence[Named], of: Of) -> Tensor | None:
    """Concatenate the gradients; None if one is missing or cannot be read."""
    gradients = [of(each) for each in parameters]
    found = [each for each in gradients if each is not None and _is_plain(each)]
    return torch.cat([each.reshape(-1) for each in found]) if len(found) == len(gradients) else None


def _lie_in(tensor: Tensor, parameters: Sequence[Named], of: Of) -> bool:
    """True if the gradients are consecutive parts of a tensor."""
    address = tensor.data_ptr()
    for each in parameters:
        gradient = of(each)
        if gradient is None or gradient.data_ptr() != address or not gradient.is_contiguous():
            return False
        address += gradient.nbytes
    return address == tensor.data_ptr() + tensor.nbytes


def _written(parameters: Sequence[Named], of: Of) -> list[tuple[int, int]]:
    """Return version numbers that change once a gradient is written to, or replaced."""
    gradients = [of(each) for each in parameters]
    return [(0, 0) if each is None else (id(each), each._version) for each in gradients]


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided and not tensor.is_meta
