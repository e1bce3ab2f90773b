"""Snapshots: what a model holds at one moment, by name, so that two trainings can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

Tensors: TypeAlias = "Mapping[str, Tensor | None]"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of a model's tensors, by name; a gradient that there is none of is None."""

    parameters: Tensors
    buffers: Tensors
    gradients: Tensors
    iteration: int | None = None
    """The iteration that it was taken after, from 0; None at the end of the training."""


History: TypeAlias = "tuple[Snapshot, ...]"
"""What one rank had after each of its iterations, and at the end."""


def snapshot(module: nn.Module, iteration: int | None = None, *, gradients: bool = False) -> Snapshot:
    """What `module` holds now."""
    return Snapshot(
        {name: _copy(parameter) for name, parameter in module.named_parameters()},
        {name: _copy(buffer) for name, buffer in module.named_buffers()},
        {name: _copy(parameter.grad) for name, parameter in module.named_parameters()} if gradients else {},
        iteration,
    )


def together(snapshots: Mapping[str, Snapshot]) -> Snapshot:
    """One snapshot of several models, each with a prefix to its names."""
    first = next(iter(snapshots.values()))
    if len(snapshots) == 1:
        return first
    return Snapshot(
        _prefixed({prefix: each.parameters for prefix, each in snapshots.items()}),
        _prefixed({prefix: each.buffers for prefix, each in snapshots.items()}),
        _prefixed({prefix: each.gradients for prefix, each in snapshots.items()}),
        first.iteration,
    )


def _prefixed(tensors: Mapping[str, Tensors]) -> Tensors:
    return {f"{prefix}.{name}": tensor for prefix, own in tensors.items() for name, tensor in own.items()}


def _copy(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().to_dense().clone() if tensor.is_sparse else tensor.detach().clone()
