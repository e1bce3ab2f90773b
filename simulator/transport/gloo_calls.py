"""Makes the call of one rank on a real gloo backend.

The table of operations (`simulator/operations.py`) names the method and how the method takes its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as _c10d
from torch import Tensor
from torch.distributed import ReduceOp

from ddpsim.simulator.errors import InternalError
from ddpsim.simulator.operations import OPERATIONS, Operation, Passing
from ddpsim.simulator.transport.payload import Payload

_ONE_BY_ONE = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
"""Methods of a process group that a gloo backend lacks in Python, and the backend's method for a single tensor."""

_UNTYPED: Any = _c10d
"""The module without types: torch's stubs lack some fields of its option classes."""


def ask(operation: str, backend: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    """Make a rank's call on its real backend, and return the work. `root` is a group rank.

    The call does not go through a process group: torch's operators there may be running a call of the simulation.
    """
    if payload.gathered is not None:
        return _gather_into_one(backend, payload.inputs[0], payload.gathered)
    row = OPERATIONS[operation]
    if row.on_gloo is None:
        raise InternalError(f"{operation} has no gloo method: correct its row in simulator/operations.py")
    tensors = ARGUMENTS[row.on_gloo.passing](payload)
    options = [_options(row, row.on_gloo.options, payload, reduction, root)] if row.on_gloo.options else []
    single = _ONE_BY_ONE.get(row.on_gloo.method)
    if single is None:
        return getattr(backend, row.on_gloo.method)(*tensors, *options)
    return _Works([getattr(backend, single)(*pair, *options) for pair in zip(*tensors, strict=True)])


class _Works:
    """Several works of gloo that are waited for as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all works; raise the first error."""
        for work in self._works:
            work.wait()


def _options(row: Operation, kind: str, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = getattr(_UNTYPED, kind)()
    if row.reduces:
        is_scaled = reduction == "PREMUL_SUM"
        options.reduceOp = (
            _UNTYPED._make_nccl_premul_sum(payload.factor) if is_scaled else getattr(ReduceOp, str(reduction))
        )
    if row.has_root:
        options.rootRank = root
    if hasattr(options, "device"):  # of a barrier, which has no tensors that name a device
        options.device = torch.device("cpu")
    return options


def _gather_into_one(backend: Any, tensor: Tensor, gathered: list[Tensor]) -> Any:
    """Make an all_gather that returns one tensor, which is appended to `gathered`."""
    together = tensor.new_empty(backend.size() * tensor.shape[0], *tensor.shape[1:])
    gathered.append(together)
    return backend._allgather_base(together, tensor)


def _lists_from_tensors(payload: Payload) -> tuple[Any, ...]:
    count = len(payload.inputs)
    starts = range(0, len(payload.outputs), count)
    return [list(payload.outputs[start : start + count]) for start in starts], list(payload.inputs)


def _split_tensors(payload: Payload) -> tuple[Any, ...]:
    assert payload.splits is not None
    sent, received = (list(part) for part in payload.splits)
    return payload.outputs[0], payload.inputs[0], received, sent


def _in_list(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    return [list(tensors)] if tensors else []


ARGUMENTS: dict[Passing, Callable[[Payload], tuple[Any, ...]]] = {
    Passing.NOTHING: lambda payload: (),
    Passing.TENSORS: lambda payload: (list(payload.inputs),),
    Passing.TENSOR_FROM_TENSOR: lambda payload: (payload.outputs[0], payload.inputs[0]),
    Passing.TENSORS_FROM_TENSORS: lambda payload: (list(payload.outputs), list(payload.inputs)),
    Passing.LIST_FROM_TENSORS: lambda payload: (_in_list(payload.outputs), list(payload.inputs)),
    Passing.TENSORS_FROM_LIST: lambda payload: (list(payload.outputs), _in_list(payload.inputs)),
    Passing.LISTS_FROM_TENSORS: _lists_from_tensors,
    Passing.SPLIT_TENSORS: _split_tensors,
}
"""The arguments of a backend's method for each way of passing tensors; gloo.py passes those of messages."""
