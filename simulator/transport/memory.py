"""Transport `memory`: moves the tensors of all ranks of a call within this process.

`MOVEMENTS` has a function for each operation. It gets the payloads of all ranks in group-rank order, so a sum has the
same bits in every schedule. It reads everything before it writes anything, because inputs may be outputs.

A reduction has the bits of the group's backend, NaN, -0.0 and rounding included. gloo cuts a tensor into a chunk for
each rank, and passes each chunk down the ring (gloo/allreduce.cc, gloo/reduce.cc): chunk c begins at rank c - 1, and
each lower rank, then the highest one and so on down to rank c, combines its own elements with those it receives.
NCCL's order depends on the machine; here it is the order of the ranks. Its MIN and MAX ignore NaN, and AVG multiplies
before it adds (src/device/reduce_kernel.h, src/enqueue.cc).

Tensors are written below autograd and without changing their version counters, as a real backend writes memory. Tensors
of equal size and different shape pair their elements in row-major order.

On a GPU the work runs on the current stream of the thread whose call came last. All ranks use the default stream, so
the work comes after everything that they queued there; data from another stream needs a synchronisation first.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from itertools import accumulate
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistBackendError

from ddpsim.simulator.calls import Signature, Site
from ddpsim.simulator.events import RAW_MEMORY
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.payload import Payload

Moving = Callable[[Sequence[Payload], str, int], None]
"""A function that moves data: it takes all payloads in group-rank order, the reduction ("" for none), and the root."""

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PREMUL_SUM": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda total, tensor: torch.fmin(total, tensor, out=total),
    "MAX": lambda total, tensor: torch.fmax(total, tensor, out=total),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}
"""By reduction: combines the total of some ranks with the tensor of the next one, in place."""

_ON_GLOO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": lambda own, received: torch.where(received < own, received, own),
    "MAX": lambda own, received: torch.where(own < received, received, own),
}
"""By reduction: combines a rank's elements with those received, as std::min and std::max do: `own` if one is a NaN."""

_OF_ONE_BYTE = frozenset({torch.uint8, torch.int8})

_GLOO_SEGMENT = 1024 * 1024
"""The most bytes that gloo moves at a time (kMaxSegmentSize)."""

_FEW_ELEMENTS = 65536
"""The most elements of all ranks that are put in order to combine all chunks at once; more are combined one by one."""


class MemoryTransport:
    """The transport `memory`, whose only state is what it notes."""

    def __init__(self) -> None:
        self.notes: dict[Site, str] = {}
        """By line of the program, what `note_wrong_values` found there."""
        self.is_in_rank_order = False
        """True if all sums are in the order of the ranks, as with NCCL here. gloo's order depends on the place of a
        value in its bucket, and DDP has other buckets before its first backward than later."""

    def move_data(
        self, signature: Signature, pendings: Sequence[PendingCall], members: Sequence[int]
    ) -> Exception | None:
        """Move the data of a call; the arguments are those of `GlooTransport.move_data`."""
        if (refusal := same_gpu_error(pendings)) is not None:
            return refusal
        note_wrong_values(self.notes, signature, pendings)
        root = None if signature.root is None else members.index(signature.root)
        payloads = [pending.payload for pending in pendings]
        if self.is_in_rank_order:
            payloads = [each._replace(on_nccl=True) for each in payloads]
        move_payloads(signature.operation, payloads, signature.reduction, root)
        return None

    def close(self) -> None:
        """Release nothing: nothing is open."""


def note_wrong_values(notes: dict[Site, str], signature: Signature, pendings: Sequence[PendingCall]) -> None:
    """Note tensors whose orders in memory differ, and a SUM of integers of one byte that leaves the range of their
    type; no backend says that elements meet others, or that a sum wraps around."""
    if any(pending.payload.order != pendings[0].payload.order for pending in pendings):
        call = pendings[0].call
        what = f"{RAW_MEMORY}the tensor of {call.title} ({call.location}) lies in memory in unlike orders on the ranks"
        notes.setdefault(call.site, f"{what}: pass tensor.contiguous(), and copy it back")
    first = next(iter(pendings[0].payload.inputs), None)
    is_dense = first is not None and first.layout is torch.strided and not first.is_meta
    if signature.reduction != "SUM" or first is None or first.dtype not in _OF_ONE_BYTE or not is_dense:
        return
    limits, call = torch.iinfo(first.dtype), pendings[0].call
    for column in zip(*(pending.payload.inputs for pending in pendings), strict=False):
        total = torch.stack([tensor.reshape(-1).to(torch.int64) for tensor in column]).sum(0)
        if ((total > limits.max) | (total < limits.min)).any():
            what = f"the SUM of {call.title} ({call.location}) left the range of {limits.dtype} and wrapped around"
            notes.setdefault(call.site, f"{what}: add up in a wider type")


def same_gpu_error(pendings: Sequence[PendingCall]) -> Exception | None:
    """Return NCCL's error if two ranks bring tensors of one GPU; None if none do."""
    ranks: dict[str, int] = {}
    for index, pending in enumerate(pendings):
        gpu = pending.payload.gpu
        if gpu is None or (other := ranks.setdefault(gpu, index)) == index:
            continue
        if pendings[other].call.rank != pending.call.rank:  # not a message to oneself
            return DistBackendError(
                "NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp, invalid usage (run with NCCL_DEBUG=WARN for "
                "details) ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error: "
                f"Duplicate GPU detected : rank {other} and rank {index} both on CUDA device {gpu.partition(':')[2]}"
            )
    return None


def move_payloads(operation: str, payloads: Sequence[Payload], reduction: str | None, root: int | None) -> None:
    """Move the data of one operation; `root` is a group rank."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        MOVEMENTS[operation](payloads, reduction or "", -1 if root is None else root)


def reduce_tensors(
    tensors: Sequence[Tensor], reduction: str, factors: Sequence[Any] = (), *, on_nccl: bool = False
) -> Tensor:
    """Return a new tensor: the reduction of `tensors`, each times its factor in a PREMUL_SUM."""
    size, shape, dtype = len(tensors), tensors[0].shape, tensors[0].dtype
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    if dtype.itemsize == 1 and not is_whole:  # the CPU has no arithmetic of float8
        wide = reduce_tensors([tensor.to(torch.float32) for tensor in tensors], reduction, factors, on_nccl=on_nccl)
        return wide.to(dtype)
    if reduction == "AVG" and on_nccl and not is_whole:
        reduction, factors = "PREMUL_SUM", [tensors[0].new_tensor(1 / size)] * size
    if reduction == "PREMUL_SUM":
        tensors = [tensor.mul(factor).to(dtype) for tensor, factor in zip(tensors, factors, strict=True)]
    depends_on_order = not is_whole and size > (1 if reduction in ("MIN", "MAX") else 2)
    if depends_on_order and not on_nccl and reduction in _ON_GLOO:
        flat = [tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in tensors]
        total = _reduce_around_ring(flat, _ON_GLOO[reduction])
        total = total if total.shape == shape else total.view(shape)
    else:
        total = tensors[0].clone(memory_format=torch.contiguous_format)
        for tensor in tensors[1:]:
            _BINARY[reduction](total, tensor if tensor.shape == shape else tensor.reshape(shape))
    return _divided(total, size) if reduction == "AVG" else total


def _divided(total: Tensor, size: int) -> Tensor:
    is_whole = not (total.dtype.is_floating_point or total.dtype.is_complex)
    return total.div_(size, rounding_mode="trunc" if is_whole else None)  # NCCL truncates integers


def _reduce_around_ring(tensors: Sequence[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the reduction of flat tensors, combined in gloo's order: chunk c from rank c - 1 down to rank c."""
    size, count = len(tensors), tensors[0].numel()
    chunk = _elements_in_chunk(count, size, tensors[0].itemsize)
    if count <= chunk:
        return reduce(lambda received, own: combine(own, received), reversed(tensors))
    if size * count <= _FEW_ELEMENTS:
        index = _ring_order(size, count, chunk)
        in_order = torch.cat(list(tensors)).take(index.to(tensors[0].device) if tensors[0].is_cuda else index)
        received, *others = in_order.unbind()
        for own in others:
            received = combine(own, received)
        return received
    totals = []
    for number, start in enumerate(range(0, count, chunk)):
        ranks = (tensors[(number - 1 - step) % size][start : start + chunk] for step in range(size))
        totals.append(reduce(lambda received, own: combine(own, received), ranks))
    return torch.cat(totals)


def _elements_in_chunk(count: int, size: int, itemsize: int) -> int:
    """Return the number of elements that gloo gives each of `size` ranks of a tensor with `count` elements."""
    most = max(1, _GLOO_SEGMENT // itemsize) * itemsize
    segments = ceil(max(ceil(count * itemsize / most), 2 * size) / size)
    return segments * ceil(count / (segments * size))


@lru_cache(maxsize=32)
def _ring_order(size: int, count: int, chunk: int) -> Tensor:
    """Return, for each step of gloo's ring, the index of each element to combine in the ranks' concatenated tensors."""
    elements = torch.arange(count)
    ranks = (elements // max(chunk, 1) - 1 - torch.arange(size).unsqueeze(1)) % size
    return ranks * count + elements


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


def _reduce_columns(
    payloads: Sequence[Payload], reduction: str, columns: Iterable[Sequence[Tensor]] | None = None
) -> list[Tensor]:
    """Return the reduction of each column: one tensor of each rank. By default a column is one place in the inputs."""
    factors, on_nccl = [payload.factor for payload in payloads], payloads[0].on_nccl
    return [
        reduce_tensors(column, reduction, factors, on_nccl=on_nccl)
        for column in columns or zip(*(payload.inputs for payload in payloads), strict=True)
    ]


def _all_reduce(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    if payloads[0].inputs[0].is_sparse:
        total = _sum_sparse_tensors([tensor for payload in payloads for tensor in payload.inputs])
        for payload in payloads:
            for tensor in payload.outputs:
                tensor.copy_(total)
        return
    column = [_reduced_in_rank(payload.inputs, reduction) for payload in payloads]
    (total,) = _reduce_columns(payloads, reduction, [column])
    for payload in payloads:
        _write_outputs(payload.outputs[:1], [total])
    if reduction == "AVG" and any(len(payload.outputs) > 1 for payload in payloads):  # gloo divides only the first
        (total,) = _reduce_columns(payloads, "SUM", [column])
    for payload in payloads:
        _write_outputs(payload.outputs[1:], [total] * (len(payload.outputs) - 1))


def _reduced_in_rank(tensors: Sequence[Tensor], reduction: str) -> Tensor:
    """Return the reduction of a rank's tensors, which gloo makes before it passes anything on."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = _BINARY[reduction](total.clone(), tensor)
    return total


def _all_reduce_coalesced(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    if not payloads[0].on_nccl:  # gloo reduces coalesced tensors as one
        column = [torch.cat([tensor.reshape(-1) for tensor in payload.inputs]) for payload in payloads]
        (total,) = _reduce_columns(payloads, reduction, [column])
        totals = list(total.split([tensor.numel() for tensor in payloads[0].inputs]))
    else:
        totals = _reduce_columns(payloads, reduction)
    for payload in payloads:
        _write_outputs(payload.outputs, totals)


def _reduce(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    totals = _reduce_columns(payloads, reduction)
    if not payloads[0].on_nccl:
        left = _left_by_gloo([payload.inputs[0].reshape(-1) for payload in payloads], reduction)
        for rank, payload in enumerate(payloads):
            if rank != root:
                _write_outputs(payload.outputs, [left[rank]])
    _write_outputs(payloads[root].outputs, totals)


def _left_by_gloo(tensors: Sequence[Tensor], reduction: str) -> list[Tensor]:
    """Return what gloo's reduce leaves in each rank's flat tensor: of a chunk, what the rank passed on in the ring."""
    size, count = len(tensors), tensors[0].numel()
    chunk = max(1, _elements_in_chunk(count, size, tensors[0].itemsize))

    def combine(received: Tensor, own: Tensor) -> Tensor:
        on_gloo = _ON_GLOO.get(reduction)
        return _BINARY[reduction](own.clone(), received) if on_gloo is None else on_gloo(own, received)

    left = [tensor.clone() for tensor in tensors]
    for number, start in enumerate(range(0, count, chunk)):
        ranks = [(number - 1 - step) % size for step in range(size)]
        parts = [tensors[rank][start : start + chunk] for rank in ranks]
        for rank, passed in zip(ranks, accumulate(parts, combine), strict=True):
            left[rank][start : start + chunk] = passed
    return [_divided(each, size) for each in left] if reduction == "AVG" else left


def _broadcast(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    source = payloads[root].inputs[0]
    for rank, payload in enumerate(payloads):
        outputs = payload.outputs[1:] if rank == root else payload.outputs
        _write_outputs(outputs, [source] * len(outputs))


def _all_gather(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    if payloads[0].gathered is None:
        sources = [tensor.clone() for payload in payloads for tensor in payload.inputs]
        for payload in payloads:
            _write_outputs(payload.outputs, sources * len(payload.inputs))
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
    for payload, total in zip(payloads, _reduce_columns(payloads, reduction), strict=True):
        _write_outputs(payload.outputs, [total])


def _reduce_scatter_tensor(payloads: Sequence[Payload], reduction: str, root: int) -> None:
    columns = zip(*([tensor.reshape(-1) for tensor in payload.inputs] for payload in payloads), strict=True)
    totals = _reduce_columns(payloads, reduction, columns)
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
    "all_reduce_coalesced": _all_reduce_coalesced,
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
