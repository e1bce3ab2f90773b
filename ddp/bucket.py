"""A gradient bucket: a flat tensor, a view into it for every parameter, and the reduction in flight."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddpsim.ddp.communication_hooks import CommunicationHook, GradBucket, check_hook_result, reduced_tensor
from ddpsim.ddp.errors import UsageError

SMALL_BYTES = 32 * 1024
"""Gradients up to this average size are copied in one call and scaled in a second pass over the bucket: faster than a
call for each gradient (0.2 to 0.9 times the time, measured in buckets of 1 to 25 MiB on a CPU)."""


@dataclass(frozen=True, slots=True)
class GradientScale:
    """The divisor of a gradient, applied before the ranks' gradients are summed.

    torch multiplies by the reciprocal while it copies a gradient into its bucket. A gradient that already is a view of
    the bucket is divided in place (reducer.cpp, mark_variable_ready_dense). The last bit differs unless the divisor is
    a power of two. `divides_in_place` selects the division.
    """

    divisor: float
    divides_in_place: bool = False

    @property
    def factor(self) -> float:
        """The reciprocal of the divisor."""
        return 1.0 / self.divisor

    @property
    def contributes_zeros(self) -> bool:
        """Whether this rank contributes zeros, even if its gradients are NaN."""
        return math.isinf(self.divisor)

    def scale_gradients(self, gradients: Tensor, *, in_place: bool) -> None:
        """Scale gradients that are in a bucket. `in_place`: they were views of the bucket before this backward."""
        if in_place and self.divides_in_place:
            gradients.div_(self.divisor)
        else:
            gradients.mul_(self.factor)


class Bucket:
    """The gradients of some parameters of one dtype and device, reduced by one collective.

    A gradient is scaled while it is copied in, and then becomes a view of the flat tensor, so nothing is copied back.
    A sparse gradient has a bucket of its own without a flat buffer: `flat` is the gradient itself.
    """

    def __init__(
        self, index: int, indices: Sequence[int], parameters: Mapping[str, Parameter], *, is_last: bool, is_sparse: bool
    ) -> None:
        self.index = index
        self.indices = tuple(indices)
        self.names = tuple(parameters)
        self.parameters = tuple(parameters.values())
        self.is_last = is_last
        self.is_sparse = is_sparse
        self.pending = len(self.indices)
        """The number of the bucket's gradients that this backward has not computed yet."""
        self._in_flight: Any = None
        self._hook: CommunicationHook | None = None
        self._seen_by_hook: GradBucket | None = None
        first = self.parameters[0]
        if is_sparse:
            self.flat = _empty_sparse_gradient(first)
            self.views: tuple[Tensor, ...] = (self.flat,)
        else:
            self.flat = torch.zeros(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
            self.views = _gradient_views(self.flat, self.parameters)
        self._has_small_gradients = self.size_bytes <= SMALL_BYTES * len(self.parameters)

    @property
    def size_bytes(self) -> int:
        """The size of the gradients in bytes, counted as if dense."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    @torch.no_grad()
    def copy_gradients_in(self, scale: GradientScale | None, *, makes_views: bool) -> None:
        """Copy the gradients into the bucket and scale them; with `makes_views`, they become views of it."""
        if self.is_sparse:
            self._fill_sparse(scale)
            return
        gradients = [parameter.grad for parameter in self.parameters]
        if scale is not None and scale.contributes_zeros:
            self.flat.zero_()
        else:
            self._fill_dense(gradients, scale)
        if makes_views:
            for parameter, gradient, view in zip(self.parameters, gradients, self.views, strict=True):
                if gradient is not None and gradient is not view:
                    parameter.grad = view

    def _fill_dense(self, gradients: Sequence[Tensor | None], scale: GradientScale | None) -> None:
        in_place: list[Tensor] = []
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for name, gradient, view in zip(self.names, gradients, self.views, strict=True):
            if gradient is None:
                view.zero_()
            elif gradient is view:
                in_place.append(view)
            elif gradient.is_sparse:
                raise UsageError(
                    f"{name} got a sparse gradient, expected a dense one: only nn.Embedding and nn.EmbeddingBag with "
                    "sparse=True may have sparse gradients"
                )
            else:
                sources.append(gradient)
                targets.append(view)
        are_scaled_alike = scale is None or not scale.divides_in_place or not (in_place and sources)
        if self._has_small_gradients and are_scaled_alike:
            self._fill_at_once(sources, targets, scale)
        else:
            _fill_one_by_one(sources, targets, in_place, scale)

    def _fill_at_once(self, sources: list[Tensor], targets: list[Tensor], scale: GradientScale | None) -> None:
        """Copy and scale all gradients in two calls; the bits equal those of a copy that multiplies."""
        if sources:
            torch._foreach_copy_(targets, sources)
        if scale is not None:
            scale.scale_gradients(self.flat, in_place=not sources)

    def _fill_sparse(self, scale: GradientScale | None) -> None:
        gradient = self.parameters[0].grad
        if gradient is None or (scale is not None and scale.contributes_zeros):
            gradient = _empty_sparse_gradient(self.parameters[0])
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        if scale is not None and not scale.contributes_zeros:
            gradient.div_(scale.divisor)
        self.flat, self.views = gradient, (gradient,)

    @torch.no_grad()
    def turn_gradients_into_views(self) -> None:
        """Turn existing gradients into views of the bucket with the same values, at the same point as torch."""
        if self.is_sparse:
            return
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None and parameter.grad is not view and not parameter.grad.is_sparse:
                view.copy_(parameter.grad)
                parameter.grad = view

    def set_gradient(self, index: int) -> None:
        """Set a parameter's gradient to its view of the reduced flat tensor."""
        position = self.indices.index(index)
        self.parameters[position].grad = self.views[position]

    @torch.no_grad()
    def copy_gradients_out(self, *, kept: Container[int]) -> None:
        """Copy the reduced gradients into the parameters' gradients, except for the parameter indices in `kept`."""
        for index, parameter, view in zip(self.indices, self.parameters, self.views, strict=True):
            if index in kept:
                continue
            if parameter.grad is None:
                parameter.grad = view.clone()
            elif parameter.grad is not view and not self.is_sparse:
                parameter.grad.copy_(view)

    def contribute_zeros(self) -> None:
        """Set this rank's contribution to zeros."""
        if self.is_sparse:
            self.flat = _empty_sparse_gradient(self.parameters[0])
            self.views = (self.flat,)
        else:
            self.flat.zero_()

    def start_reduction(self, group: ProcessGroup, hook: CommunicationHook | None, state: object) -> None:
        """Start the reduction: a sum over the group, or the communication hook if there is one."""
        self._hook = hook
        if hook is None:
            self._in_flight = dist.all_reduce(self.flat, group=group, async_op=True)
        else:
            seen = GradBucket(self.index, self.flat, self.views, self.parameters, is_last=self.is_last)
            self._seen_by_hook = seen
            self._in_flight = check_hook_result(hook(state, seen), hook)

    def wait_for_reduction(self) -> None:
        """Wait for the reduction; the gradients are not updated."""
        self._in_flight.wait()

    def finish_reduction(self) -> None:
        """Wait for the reduction. Afterwards the views hold the reduced gradients."""
        in_flight, self._in_flight = self._in_flight, None
        self.pending = len(self.indices)
        if self._hook is None:
            in_flight.wait()
        else:
            seen, self._seen_by_hook = self._seen_by_hook, None
            assert seen is not None
            reduced = reduced_tensor(in_flight.wait(), self.flat, seen=seen, hook=self._hook)
            if reduced is not self.flat and (self.is_sparse or reduced.data_ptr() != self.flat.data_ptr()):
                with torch.no_grad():
                    self.flat.copy_(reduced)
        if self.is_sparse:
            self._finalize_sparse()

    def _finalize_sparse(self) -> None:
        parameter = self.parameters[0]
        if parameter.grad is None:
            return
        if parameter.grad.is_sparse:
            parameter.grad = self.flat
        else:  # an embedding table that is also another layer's weight
            parameter.grad.copy_(self.flat.to_dense())

    def drop_reduction(self) -> None:
        """Drop the reduction in flight, and expect every gradient again."""
        self._in_flight = self._seen_by_hook = None
        self.pending = len(self.indices)


def _fill_one_by_one(
    sources: Sequence[Tensor], targets: Sequence[Tensor], in_place: Sequence[Tensor], scale: GradientScale | None
) -> None:
    """Scale each gradient while it is copied; scale gradients that already are in the bucket in place."""
    for source, target in zip(sources, targets, strict=True):
        if scale is None:
            target.copy_(source)
        else:
            torch.mul(source, scale.factor, out=target)
    if scale is not None:
        for gradient in in_place:
            scale.scale_gradients(gradient, in_place=True)


def _gradient_views(flat: Tensor, parameters: Sequence[Parameter]) -> tuple[Tensor, ...]:
    """Return a view for each parameter, with its strides if dense (torch's "Gradient Layout Contract", reducer.cpp)."""
    views, offset = [], 0
    for parameter in parameters:
        strides = torch.empty_like(parameter, device="meta").stride()
        views.append(flat.narrow(0, offset, parameter.numel()).as_strided(parameter.shape, strides))
        offset += parameter.numel()
    return tuple(views)


def _empty_sparse_gradient(parameter: Parameter) -> Tensor:
    indices = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
    values = torch.empty(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
