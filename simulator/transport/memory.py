"""Transport `memory`: moves the tensors of all ranks of a call within this process.

`MOVEMENTS` has a function for each operation, which gets the payloads of all ranks in
group-rank order, so a sum adds rank 0 first and has the same bits in every schedule. It reads everything before it
writes anything, because inputs may be outputs.

Tensors are written below autograd and without changing their version counters, as a real backend writes memory. Memory
between the elements of a tensor that is not dense stays unchanged (gloo overwrites it). Tensors of equal size and
different shape pair their elements in row-major order.

On a GPU the work runs on the current stream of the thread whose call came last. All ranks use the default stream, so
the work comes after everything that they queued there; data from another stream needs a synchronisation first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.payload import Payload

Moving = Callable[[Sequence[Payload], str, int], None]
"""A function that moves data: it takes all payloads in group-rank order, the reduction ("" for none), and the root."""

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PREMUL_SUM": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda total, tensor: torch.minimum(total, tensor, out=total),
    "MAX": lambda total, tensor: torch.maximum(total, tensor, out=total),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}


class MemoryTransport:
    """The transport `memory`, which has no state."""

    def move_data(self, signature: Signature, pendings: Sequence[PendingCall], members: Sequence[int]) -> None:
        """Move the data of a call; the arguments are those of `GlooTransport.move_data`."""
        root = None if signature.root is None else members.index(signature.root)
        move_payloads(signature.operation, [pending.payload for pending in pendings], signature.reduction, root)

    def close(self) -> None:
        """Release nothing: nothing is open."""


def move_payloads(operation: str, payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    """Move the data of one operation; `root` is a group rank."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        MOVEMENTS[operation](payloads, reduction or "", -1 if root is None else root)


def reduce_tensors(tensors: Sequence[Tensor], reduction: str, factors: Sequence[Any] = ()) -> Tensor:
    """Return a new tensor: `tensors` reduced in their order, each times its factor in a PREMUL_SUM."""
    if tensors[0].dtype.itemsize == 1 and tensors[0].is_floating_point():  # the CPU has no arithmetic of float8
        wide = reduce_tensors([tensor.to(torch.float32) for tensor in tensors], reduction, factors)
        return wide.to(tensors[0].dtype)
    if reduction == "PREMUL_SUM":
        tensors = [tensor.mul(factor).to(tensor.dtype) for tensor, factor in zip(tensors, factors, strict=True)]
    total = tensors[0].clone(memory_format=torch.contiguous_format)
    shape, combine = total.shape, _BINARY[reduction]
    for tensor in tensors[1:]:
        combine(total, tensor if tensor.shape == shape else tensor.reshape(shape))
    if reduction == "AVG":
        is_whole = not (total.is_floating_point() or total.is_complex())
        total.div_(len(tensors), rounding_mode="trunc" if is_whole else None)  # NCCL truncates integers
    return total


def _sum_sparse_tensors(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = torch.add(total, tensor)
    return total.coalesce()


def _write_outputs(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if outputs:
        fitting = [
            value if value.shape == output.shape else value.reshape(output.shape)
            for output, value in zip(outputs, values, strict=True)
        ]
        torch._foreach_copy_(list(outputs), fitting)


def _reduce_payloads(payloads: Sequence[Payload], reduction: str, *, flat: bool = False) -> list[Tensor]:
    """Return the reduction over all ranks of each of their input tensors."""
    factors = [payload.factor for payload in payloads]
    columns = zip(*(payload.inputs for payload in payloads), strict=True)
    return [
        reduce_tensors([each.reshape(-1) for each in column] if flat else column, reduction, factors)
        for column in columns
    ]


def _all_reduce(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    for column in zip(*(payload.inputs for payload in payloads), strict=True):
        if column[0].is_sparse:
            total = _sum_sparse_tensors(column)
            for tensor in column:
                tensor.copy_(total)
        else:
            total = reduce_tensors(column, reduction, [payload.factor for payload in payloads])
            _write_outputs(column, [total] * len(column))


def _reduce(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    _write_outputs(payloads[root].outputs, _reduce_payloads(payloads, reduction))


def _broadcast(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    source = payloads[root].inputs
    for rank, payload in enumerate(payloads):
        if rank != root:
            _write_outputs(payload.outputs, source)


def _all_gather(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    if payloads[0].gathered is None:
        sources = [payload.inputs[0].clone() for payload in payloads]
        for payload in payloads:
            _write_outputs(payload.outputs, sources)
        return
    together = torch.cat([payload.inputs[0] for payload in payloads])  # one tensor for all ranks, without copies
    for payload in payloads:
        assert payload.gathered is not None
        payload.gathered.append(together)


def _all_gather_into_tensor(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    columns = zip(*(payload.inputs for payload in payloads), strict=True)
    gathered = [torch.cat([tensor.reshape(-1) for tensor in column]) for column in columns]
    for payload in payloads:
        _write_outputs(payload.outputs, gathered)


def _all_gather_coalesced(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    sources = [tensor.clone() for payload in payloads for tensor in payload.inputs]
    for payload in payloads:
        _write_outputs(payload.outputs, sources)


def _gather(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    _write_outputs(payloads[root].outputs, [payload.inputs[0].clone() for payload in payloads])


def _scatter(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    parts = [tensor.clone() for tensor in payloads[root].inputs]
    for payload, part in zip(payloads, parts, strict=True):
        _write_outputs(payload.outputs, [part])


def _reduce_scatter(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    for payload, total in zip(payloads, _reduce_payloads(payloads, reduction), strict=True):
        _write_outputs(payload.outputs, [total])


def _reduce_scatter_tensor(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    totals = _reduce_payloads(payloads, reduction, flat=True)
    parts = [total.view(len(payloads), -1) if total.numel() else [total] * len(payloads) for total in totals]
    for rank, payload in enumerate(payloads):
        _write_outputs(payload.outputs, [part[rank] for part in parts])


def _all_to_all(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    parts = [[tensor.clone() for tensor in payload.inputs] for payload in payloads]
    for receiver, payload in enumerate(payloads):
        _write_outputs(payload.outputs, [sent[receiver] for sent in parts])


def _all_to_all_single(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    parts = []
    for payload in payloads:
        assert payload.splits is not None
        parts.append(payload.inputs[0].clone().split(list(payload.splits[0])))
    for receiver, payload in enumerate(payloads):
        _write_outputs(payload.outputs, [torch.cat([sent[receiver].reshape(-1) for sent in parts])])


def _deliver_message(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    send, receive = payloads
    _write_outputs(receive.outputs, send.inputs)


def _move_nothing(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    """Move nothing, for a call that only synchronises."""


MOVEMENTS: dict[str, Moving] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send": _deliver_message,
    **dict.fromkeys(("barrier", "monitored_barrier", "new_group", "split_group"), _move_nothing),
}
