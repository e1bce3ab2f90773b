"""Transport `memory`: what each operation does to the tensors of all ranks, once, in group-rank order.

One function an operation. Each gets the payloads of all ranks in group-rank order, so a sum adds rank 0 first and is the
same to the last bit whatever the schedule. Everything is read before anything is written, so inputs may be outputs.

Tensors are written below autograd and without touching their version counters, as a real backend writes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import torch
from torch import Tensor

from simulator.transport.payload import Payload


Movement = Callable[[Sequence[Payload], str | None, int | None], None]
"""Payloads in group-rank order, name of the reduction, group rank of the root."""

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


def move(operation: str, payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    """Move the data of one operation."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        MOVEMENTS[operation](payloads, reduction, root)


def reduced(tensors: Sequence[Tensor], reduction: str, factor: Any = None) -> Tensor:
    """A new tensor: `tensors` reduced from the first to the last."""
    if factor is not None:
        tensors = [tensor * factor for tensor in tensors]
    first = tensors[0]
    if first.is_sparse:
        total = fold(torch.add, tensors).coalesce()
    else:
        total = fold(_BINARY[reduction], tensors[1:], first.clone(memory_format=torch.contiguous_format))
    if reduction == "AVG":
        total = total.div_(len(tensors)) if total.is_floating_point() or total.is_complex() else total // len(tensors)
    return total


def _write(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if outputs:
        torch._foreach_copy_(list(outputs), list(values))


def _all_reduce(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert reduction is not None
    for column in zip(*(payload.inputs for payload in payloads), strict=True):
        total = reduced(column, reduction, payloads[0].factor)
        if total.is_sparse:
            for tensor in column:
                tensor.copy_(total)
        else:
            _write(column, [total] * len(column))


def _reduce(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert reduction is not None and root is not None
    columns = list(zip(*(payload.inputs for payload in payloads), strict=True))
    totals = [reduced(column, reduction, payloads[0].factor) for column in columns]
    _write(payloads[root].outputs, totals)


def _broadcast(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert root is not None
    source = payloads[root].inputs
    for rank, payload in enumerate(payloads):
        if rank != root:
            _write(payload.outputs, source)


def _all_gather(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    if payloads[0].gathered is not None:
        _share(payloads)
        return
    sources = [payload.inputs[0].clone() for payload in payloads]
    for payload in payloads:
        _write(payload.outputs, sources)


def _all_gather_into_tensor(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    for index in range(len(payloads[0].inputs)):
        flat = torch.cat([payload.inputs[index].reshape(-1) for payload in payloads])
        for payload in payloads:
            output = payload.outputs[index]
            output.copy_(flat.view(output.shape))


def _all_gather_coalesced(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    sources = [tensor.clone() for payload in payloads for tensor in payload.inputs]
    for payload in payloads:
        _write(payload.outputs, sources)


def _gather(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert root is not None
    _write(payloads[root].outputs, [payload.inputs[0] for payload in payloads])


def _scatter(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert root is not None
    for payload, part in zip(payloads, payloads[root].inputs, strict=True):
        payload.outputs[0].copy_(part)


def _reduce_scatter(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert reduction is not None
    columns = zip(*(payload.inputs for payload in payloads), strict=True)
    totals = [reduced(column, reduction, payloads[0].factor) for column in columns]
    for payload, total in zip(payloads, totals, strict=True):
        payload.outputs[0].copy_(total)


def _reduce_scatter_tensor(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    assert reduction is not None
    for index, column in enumerate(zip(*(payload.inputs for payload in payloads), strict=True)):
        total = reduced([tensor.reshape(-1) for tensor in column], reduction, payloads[0].factor)
        for payload, part in zip(payloads, total.chunk(len(payloads)), strict=True):
            output = payload.outputs[index]
            output.copy_(part.view(output.shape))


def _all_to_all(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    parts = [[tensor.clone() for tensor in payload.inputs] for payload in payloads]
    for receiver, payload in enumerate(payloads):
        for output, sent in zip(payload.outputs, parts, strict=True):
            output.copy_(sent[receiver].view(output.shape))


def _all_to_all_single(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    parts = []
    for payload in payloads:
        assert payload.splits is not None
        parts.append(payload.inputs[0].clone().split(list(payload.splits[0])))
    for receiver, payload in enumerate(payloads):
        payload.outputs[0].copy_(torch.cat([sent[receiver] for sent in parts]).view(payload.outputs[0].shape))


def _message(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    send, receive = payloads
    for source, target in zip(send.inputs, receive.outputs, strict=True):
        target.copy_(source.reshape(target.shape))


def _share(payloads: Sequence[Payload]) -> None:
    """Leave one list of all inputs with every rank, without a copy for each."""
    sources = [payload.inputs[0] for payload in payloads]
    for payload in payloads:
        assert payload.gathered is not None
        payload.gathered.extend(sources)


def _nothing(payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    """A call that only synchronises."""


MOVEMENTS: dict[str, Movement] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "all_gather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send": _message,
    "barrier": _nothing,
    "monitored_barrier": _nothing,
    "new_group": _nothing,
}
