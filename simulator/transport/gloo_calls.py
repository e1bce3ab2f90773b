"""What each operation asks of a real process group, one rank at a time; what moves data in memory is in memory.py.

Which method, and how it takes its tensors, says the table of operations. Operations go through torch's `ProcessGroup`,
which hands them to gloo (torch/csrc/distributed/c10d/Ops.cpp): so sparse tensors take the same way as without a
simulator.
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
"""Methods of a group that a backend has not in Python, and those for one of their tensors."""

_UNTYPED: Any = _c10d
"""torch's stubs lack some of the options' fields."""


def ask(operation: str, backend: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    """Make a rank's call on its real backend, and return the work. `root` is a group rank.

    Not on a group: its calls go through torch's operators, where those of the simulation may be under way.
    """
    if payload.gathered is not None:
        return _gather_into_one(backend, payload.inputs[0], payload.gathered)
    row = OPERATIONS[operation]
    if row.on_gloo is None:
        raise InternalError(f"{operation} asks nothing of gloo: correct its row in simulator/operations.py")
    tensors = ARGUMENTS[row.on_gloo.passing](payload)
    options = [_options(row, row.on_gloo.options, payload, reduction, root)] if row.on_gloo.options else []
    single = _ONE_BY_ONE.get(row.on_gloo.method)
    if single is None:
        return getattr(backend, row.on_gloo.method)(*tensors, *options)
    return _Works([getattr(backend, single)(*pair, *options) for pair in zip(*tensors, strict=True)])


class _Works:
    """Several calls as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all; raise what the first that failed raised."""
        for work in self._works:
            work.wait()


def reduce_op(reduction: str | None, payload: Payload) -> Any:
    """torch's value for a reduction."""
    if reduction == "PREMUL_SUM":
        return _UNTYPED._make_nccl_premul_sum(payload.factor)
    return getattr(ReduceOp, str(reduction))


def _options(row: Operation, kind: str, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = getattr(_UNTYPED, kind)()
    if row.reduces:
        options.reduceOp = reduce_op(reduction, payload)
    if row.has_root:
        options.rootRank = root
    if hasattr(options, "device"):  # a barrier's: without tensors, nothing else says where it is made
        options.device = torch.device("cpu")
    return options


def _gather_into_one(backend: Any, tensor: Tensor, gathered: list[Tensor]) -> Any:
    """Where an all_gather has no output tensors of its own."""
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
"""All but those of messages, which have two sides and stand in gloo.py."""
