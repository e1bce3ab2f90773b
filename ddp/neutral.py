"""The part that a rank without input takes in a collective: it makes it, too, with a neutral contribution.

Neutral is what leaves the result as the other ranks make it: 0 for a sum, the lowest value for a maximum. Where ranks
are kept apart (gathers, all-to-all) the neutral contribution is zeros of the right shape; a None among objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import ProcessGroup

from ddpsim.ddp.collectives import Collective, public_name

# torch 2.13 has renamed these two.
_all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def take_part(collective: Collective, group: ProcessGroup, device: torch.device) -> None:
    """Make the collective with a neutral contribution, and wait until it is over.

    `device` is where tensors live, unless the collective is about another type of device.
    """
    if collective.device_type != device.type:
        device = torch.device(collective.device_type)
    contribution = _object if collective.holds_object else _neutral
    tensors = [contribution(collective, shape, device) for shape in collective.shapes]
    _SHADOWS[public_name(collective.operation)](collective, group, tensors)


def _neutral(collective: Collective, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if collective.is_sparse:
        indices = torch.empty(1, 0, dtype=torch.long, device=device)
        values = torch.empty(0, *shape[1:], dtype=collective.dtype, device=device)
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    return torch.full(
        shape, _neutral_value(collective.reduction, collective.dtype), dtype=collective.dtype, device=device
    )


def _neutral_value(reduction: str, dtype: torch.dtype) -> float | int | bool:
    if reduction == "PRODUCT":
        return 1
    if reduction == "BAND":
        return True if dtype is torch.bool else -1 if dtype.is_signed else torch.iinfo(dtype).max
    if reduction in ("MIN", "MAX"):
        if dtype is torch.bool:
            return reduction == "MIN"
        if dtype.is_floating_point:
            return float("inf") if reduction == "MIN" else float("-inf")
        limits = torch.iinfo(dtype)
        return limits.max if reduction == "MIN" else limits.min
    return 0


def _object(collective: Collective, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A None as torch sends objects: first its size, then its bytes, in a tensor that has room for the largest."""
    pickled = pickle.dumps(None)
    if collective.dtype is not torch.uint8:
        return torch.full(shape, len(pickled), dtype=collective.dtype, device=device)
    padded = torch.zeros(shape, dtype=torch.uint8, device=device)
    padded[: len(pickled)] = torch.tensor(list(pickled), dtype=torch.uint8)
    return padded


def _op(collective: Collective) -> Any:
    if collective.reduction == "PREMUL_SUM":
        return getattr(dist, "_make_nccl_premul_sum")(1.0)  # noqa: B009 - only where there is NCCL
    return getattr(dist.ReduceOp, collective.reduction)


def _parts(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    return [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]


def _stacked(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Room for one such tensor from each rank, one after another along the first dimension."""
    rows, *rest = tensor.shape or (1,)
    return tensor.new_empty(dist.get_world_size(group) * rows, *rest)


def _part(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Room for this rank's part of such a tensor."""
    rows, *rest = tensor.shape
    return tensor.new_empty(rows // dist.get_world_size(group), *rest)


def _root(collective: Collective, group: ProcessGroup) -> int:
    return dist.get_global_rank(group, collective.root)


def _all_reduces_coalesced(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _op(collective)
    group.allreduce_coalesced(tensors, options).wait()


def _all_gathers_coalesced(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    outputs = [_stacked(tensor, group) for tensor in tensors]
    getattr(group, collective.operation)(outputs, tensors, AllgatherOptions()).wait()


def _gathers(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    root = _root(collective, group)
    dist.gather(tensors[0], _parts(tensors[0], group) if dist.get_rank() == root else None, root, group=group)


def _reduce_scatters_coalesced(collective: Collective, group: ProcessGroup, tensors: list[Tensor]) -> None:
    options = dist.ReduceScatterOptions()
    options.reduceOp = _op(collective)
    outputs = [_part(tensor, group) for tensor in tensors]
    getattr(group, collective.operation)(outputs, tensors, options).wait()


_SHADOWS: dict[str, Callable[[Collective, ProcessGroup, list[Tensor]], object]] = {
    "all_reduce": lambda c, group, own: dist.all_reduce(own[0], op=_op(c), group=group),
    "all_reduce_coalesced": _all_reduces_coalesced,
    "broadcast": lambda c, group, own: dist.broadcast(own[0], _root(c, group), group=group),
    "reduce": lambda c, group, own: dist.reduce(own[0], _root(c, group), op=_op(c), group=group),
    "all_gather": lambda c, group, own: dist.all_gather(_parts(own[0], group), own[0], group=group),
    "all_gather_into_tensor": lambda c, group, own: _all_gather_single(_stacked(own[0], group), own[0], group=group),
    "all_gather_into_tensor_coalesced": _all_gathers_coalesced,
    "gather": _gathers,
    "reduce_scatter": lambda c, group, own: dist.reduce_scatter(
        torch.empty_like(own[dist.get_rank(group)]), own, op=_op(c), group=group
    ),
    "reduce_scatter_tensor": lambda c, group, own: _reduce_scatter_single(
        _part(own[0], group), own[0], op=_op(c), group=group
    ),
    "reduce_scatter_tensor_coalesced": _reduce_scatters_coalesced,
    "scatter": lambda c, group, own: dist.scatter(own[0], None, _root(c, group), group=group),
    "all_to_all": lambda c, group, own: dist.all_to_all(list(map(torch.empty_like, own)), own, group=group),
    "all_to_all_single": lambda c, group, own: dist.all_to_all_single(torch.empty_like(own[0]), own[0], group=group),
    "barrier": lambda c, group, own: dist.barrier(group=group),
    "monitored_barrier": lambda c, group, own: dist.monitored_barrier(group=group),
}
"""How a rank takes part with tensors of its own, by what torch.distributed calls the collective."""
