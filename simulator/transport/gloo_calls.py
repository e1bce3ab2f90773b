"""What each operation asks of a real process group: the counterpart of memory.py's table, one rank at a time.

Operations go through torch's `ProcessGroup`, which hands them to gloo (torch/csrc/distributed/c10d/Ops.cpp): so sparse
tensors take the same way as without a simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as _c10d
from torch.distributed import ReduceOp

from ddpsim.simulator.transport.payload import Payload

ask: Any = _c10d
"""torch's stubs lack some of the options' fields."""

Asking = Callable[[Any, Payload, str | None, int | None], Any]
"""A rank's process group, its payload, name of the reduction, group rank of the root -> the work."""


def reduce_op(reduction: str | None, payload: Payload) -> Any:
    """torch's value for a reduction."""
    if reduction == "PREMUL_SUM":
        return ask._make_nccl_premul_sum(payload.factor)
    return getattr(ReduceOp, str(reduction))


def _options(kind: str, **fields: Any) -> Any:
    options = getattr(ask, kind)()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _all_reduce(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("AllreduceOptions", reduceOp=reduce_op(reduction, payload))
    return group.allreduce(list(payload.inputs), options)


def _all_reduce_coalesced(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("AllreduceCoalescedOptions", reduceOp=reduce_op(reduction, payload))
    return group.allreduce_coalesced(list(payload.inputs), options)


def _reduce(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("ReduceOptions", reduceOp=reduce_op(reduction, payload), rootRank=root)
    return group.reduce(list(payload.inputs), options)


def _broadcast(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    return group.broadcast(list(payload.inputs), _options("BroadcastOptions", rootRank=root))


def _all_gather(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    tensor = payload.inputs[0]
    if payload.gathered is None:
        return group.allgather([list(payload.outputs)], [tensor])
    together = tensor.new_empty(group.size() * tensor.shape[0], *tensor.shape[1:])
    payload.gathered.append(together)
    return group._allgather_base(together, tensor)


def _all_gather_into_tensor(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    return group._allgather_base(payload.outputs[0], payload.inputs[0])


def _all_gather_into_tensor_coalesced(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    return group.allgather_into_tensor_coalesced(list(payload.outputs), list(payload.inputs))


def _all_gather_coalesced(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    count = len(payload.inputs)
    lists = [list(payload.outputs[start : start + count]) for start in range(0, len(payload.outputs), count)]
    return group.allgather_coalesced(lists, list(payload.inputs))


def _gather(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    outputs = [list(payload.outputs)] if group.rank() == root else []
    return group.gather(outputs, list(payload.inputs), _options("GatherOptions", rootRank=root))


def _scatter(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    inputs = [list(payload.inputs)] if group.rank() == root else []
    return group.scatter(list(payload.outputs), inputs, _options("ScatterOptions", rootRank=root))


def _reduce_scatter(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("ReduceScatterOptions", reduceOp=reduce_op(reduction, payload))
    return group.reduce_scatter(list(payload.outputs), [list(payload.inputs)], options)


def _reduce_scatter_tensor(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("ReduceScatterOptions", reduceOp=reduce_op(reduction, payload))
    return group._reduce_scatter_base(payload.outputs[0], payload.inputs[0], options)


def _reduce_scatter_tensor_coalesced(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    options = _options("ReduceScatterOptions", reduceOp=reduce_op(reduction, payload))
    return group.reduce_scatter_tensor_coalesced(list(payload.outputs), list(payload.inputs), options)


def _all_to_all(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    return group.alltoall(list(payload.outputs), list(payload.inputs))


def _all_to_all_single(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    assert payload.splits is not None
    sent, received = (list(part) for part in payload.splits)
    return group.alltoall_base(payload.outputs[0], payload.inputs[0], received, sent)


def _barrier(group: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    return group.barrier(_options("BarrierOptions", device=torch.device("cpu")))


CALLS: dict[str, Asking] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor_coalesced,
    "all_gather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor_coalesced,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
}
"""By operation; messages have two sides and stand in gloo.py."""
