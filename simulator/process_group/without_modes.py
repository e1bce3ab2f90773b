"""Calls of a group while a torch mode shows CPU tensors as tensors of virtual GPUs.

Inside a call the mode is off, so all tensors are seen as the CPU tensors that they are. The mode does not know tensors
that C++ code made, and one call may have both kinds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ddpsim.simulator.operations import OPERATIONS, ShapeCount
from ddpsim.simulator.process_group.group import SimulatedGroup
from ddpsim.simulator.process_group.work import SimulatedWork


def hide_gpu_labels_from_calls() -> None:
    """Switch the virtual GPU mode off while a call is made, and while its tensors are listed for native code."""
    hidden: dict[Any, Any] = {}
    for kind, names in ((SimulatedGroup, _tensor_methods(SimulatedGroup)), (SimulatedWork, ("get_future",))):
        for name in names:
            method = getattr(kind, name)  # some methods have two names
            setattr(kind, name, hidden.setdefault(method, _without_modes(method)))
    gather: Any = SimulatedGroup.all_gather_single
    for name in [name for name, value in vars(SimulatedGroup).items() if value is gather]:
        setattr(SimulatedGroup, name, _gather_by_element_count(gather))


def _gather_by_element_count(gather: Callable[..., Any]) -> Callable[..., Any]:
    """Let the output tensor of an all_gather have any shape with enough elements, as SyncBatchNorm needs."""

    @functools.wraps(gather)
    def all_gather_single(self: Any, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        if output.numel() == tensor.numel() * self.size() and output.is_contiguous():
            output, tensor = output.view(-1), tensor.reshape(-1)
        return gather(self, output, tensor, opts)

    return all_gather_single


def _tensor_methods(kind: type) -> list[str]:
    """Return the methods of a group that take tensors, under all their names."""
    moving = [row for row in OPERATIONS.values() if row.shapes is not ShapeCount.NONE]
    calls = {getattr(kind, name) for row in moving for name in row.methods}
    return [name for name, value in vars(kind).items() if callable(value) and value in calls]


def _without_modes(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call_without_modes(*arguments: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*arguments, **options)

    return call_without_modes
