"""Finds calls on one flat tensor that holds all gradients of a module, and whether its sum becomes the gradients.

A flat tensor holds the gradients if its contents equal theirs when the call is issued, or equal them divided by the
number of ranks. A program may use the sum for something else, such as a norm. So the parameters count as replicas only
if the gradients hold the sum, possibly scaled, before they are used.

The same applies to one flat tensor of all parameters, with which a program averages the parameters.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from ddpsim.simulator.hazards.poison_marks import is_plain_tensor
from ddpsim.simulator.model_tensors import are_equal, fitted_factor
from ddpsim.simulator.replicas.replica_tensors import ReplicaTensor
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.modes import suspend_modes

_ROUNDINGS = 8
"""The rounding error that a scaled gradient may have, in units in the last place."""

PartReader = Callable[[ReplicaTensor], Tensor | None]
"""A function that returns a parameter's part of a flat tensor: the parameter's gradient, or its value."""


gradient_of: PartReader = attrgetter("tensor.grad")
value_of: PartReader = attrgetter("tensor")
"""Return the parameter itself: used for flat tensors that hold parameters, not gradients."""


class FlatTensorCall:
    """A flat tensor that one rank passed to a call: it holds all gradients, or all parameters, of a module."""

    def __init__(
        self,
        pending: PendingCall,
        tensor: Tensor,
        parameters: Sequence[ReplicaTensor],
        before: Tensor,
        of: PartReader = gradient_of,
    ) -> None:
        """`tensor` is the rank's flat tensor; `before` are the concatenated gradients at the time of the call."""
        self.pending = pending
        self.parameters = parameters
        self.of = of
        self._tensor = tensor
        self._before = before
        self._written = _write_versions(parameters, of)

    def is_applied(self) -> bool:
        """Return whether the gradients, or parameters, hold the sum now, possibly scaled.

        Unchanged gradients count only if they were written to, because the gradients of all ranks may be equal.
        """
        if not self.pending.is_complete:
            return False
        with torch.no_grad(), suspend_modes():
            now = _concatenate_values(self.parameters, self.of)
            if now is None or not now.any():
                return False
            shares = _equals_whole_or_share(now, self._tensor, len(self.pending.members))
            if not are_equal(now, self._before):
                return shares or is_multiple_of(now, self._tensor)
            is_written = self._written != _write_versions(self.parameters, self.of)
            return shares and (is_written or _are_parts_of(self._tensor, self.parameters, self.of))


def flat_tensor_call(
    pending: PendingCall,
    tensor: Tensor,
    content: Tensor,
    parameters: Sequence[ReplicaTensor],
    of: PartReader = gradient_of,
) -> FlatTensorCall | None:
    """Return the flat tensor that a rank passes to a call if it holds these parameters or gradients, else None."""
    if not is_plain_tensor(tensor) or not tensor.is_floating_point():
        return None
    with torch.no_grad(), suspend_modes():
        before = _concatenate_values(parameters, of)
        if before is None or before.numel() != tensor.numel():
            return None
        size = len(pending.members)
        if not _are_parts_of(tensor, parameters, of) and not _equals_whole_or_share(content, before, size):
            return None
        return FlatTensorCall(pending, tensor, parameters, before, of)


def _equals_whole_or_share(tensor: Tensor, whole: Tensor, size: int) -> bool:
    """Return whether a tensor equals the other one, or the other one divided by `size`."""
    if whole.dtype != tensor.dtype and are_equal(tensor, (whole / size).to(tensor.dtype)):
        return True  # divided before the conversion to a smaller dtype
    whole = whole.to(tensor.dtype)
    return any(are_equal(tensor, each) for each in (whole, whole / size, whole * (1 / size)))


def is_multiple_of(tensor: Tensor, whole: Tensor) -> bool:
    """Return whether a tensor equals another tensor times a positive number."""
    coarse = max(torch.finfo(tensor.dtype).eps, torch.finfo(whole.dtype).eps)
    one, other = tensor.double(), whole.double()
    factor = fitted_factor(one, other)
    return factor > 0 and torch.allclose(one, other * factor, rtol=_ROUNDINGS * coarse, atol=0)


def _concatenate_values(parameters: Sequence[ReplicaTensor], of: PartReader) -> Tensor | None:
    """Return the concatenated gradients; None if a gradient is missing or cannot be read."""
    gradients = [of(each) for each in parameters]
    found = [each for each in gradients if each is not None and is_plain_tensor(each)]
    return torch.cat([each.reshape(-1) for each in found]) if len(found) == len(gradients) else None


def _are_parts_of(tensor: Tensor, parameters: Sequence[ReplicaTensor], of: PartReader) -> bool:
    """Return whether the gradients are views of consecutive parts of one tensor."""
    address = tensor.data_ptr()
    for each in parameters:
        gradient = of(each)
        if gradient is None or gradient.data_ptr() != address or not gradient.is_contiguous():
            return False
        address += gradient.nbytes
    return address == tensor.data_ptr() + tensor.nbytes


def _write_versions(parameters: Sequence[ReplicaTensor], of: PartReader) -> list[tuple[int, int]]:
    """Return identifiers of the gradients: an identifier changes when its gradient is written to or replaced."""
    gradients = [of(each) for each in parameters]
    return [(0, 0) if each is None else (id(each), each._version) for each in gradients]
