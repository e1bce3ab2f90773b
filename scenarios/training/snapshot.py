"""Snapshots: copies of a model's tensors after an iteration, by which two trainings are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from ddpsim.simulator.model_tensors import local_part, offsets_in_whole

Tensors: TypeAlias = "Mapping[str, Tensor | None]"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of a model's tensors, by name. A missing gradient is None."""

    parameters: Tensors
    buffers: Tensors
    gradients: Tensors
    iteration: int | None = None
    """The iteration after which the snapshot was taken, from 0; None at the end of the training."""
    offsets: Mapping[str, tuple[int, ...]] | None = None
    """The offset of each parameter in the whole parameter, for a part of a model; None for a whole model."""


History: TypeAlias = "tuple[Snapshot, ...]"
"""The snapshots of one rank, after each of its iterations and at the end."""


def snapshot(module: nn.Module, iteration: int | None = None, *, gradients: bool = False) -> Snapshot:
    """Return copies of the current parameters and buffers of `module`, and of its gradients if wanted."""
    return Snapshot(
        {name: _copy_tensor(parameter) for name, parameter in module.named_parameters()},
        {name: _copy_tensor(buffer) for name, buffer in module.named_buffers()},
        {name: _copy_tensor(parameter.grad) for name, parameter in module.named_parameters()} if gradients else {},
        iteration,
    )


def part_snapshot(module: nn.Module, iteration: int | None = None, *, gradients: bool = False) -> Snapshot:
    """Return copies of a rank's part of a model; of a DTensor, the rank's own shard. Nothing is communicated."""
    own = list(module.named_parameters())
    return Snapshot(
        {name: _copy_tensor(parameter) for name, parameter in own},
        {name: _copy_tensor(buffer) for name, buffer in module.named_buffers()},
        {name: _copy_tensor(parameter.grad) for name, parameter in own} if gradients else {},
        iteration,
        {name: offsets_in_whole(parameter) for name, parameter in own},
    )


def merge_stage_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """Join the snapshots of several pipeline stages into one snapshot of the model."""

    def join(field: str) -> dict[str, Any]:
        return {name: value for part in parts for name, value in getattr(part, field).items()}

    return Snapshot(join("parameters"), join("buffers"), join("gradients"), parts[0].iteration, join("offsets"))


def join_model_snapshots(snapshots: Mapping[str, Snapshot]) -> Snapshot:
    """Join the snapshots of several models into one. Each model gets a prefix for the names of its tensors."""
    first = next(iter(snapshots.values()))
    if len(snapshots) == 1:
        return first

    def join(field: str) -> Tensors:
        pairs = ((prefix, getattr(each, field)) for prefix, each in snapshots.items())
        return {f"{prefix}.{name}": tensor for prefix, own in pairs for name, tensor in own.items()}

    return Snapshot(join("parameters"), join("buffers"), join("gradients"), first.iteration)


def _copy_tensor(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else local_part(tensor).clone()
