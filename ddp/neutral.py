"""The part that a rank without input takes in a collective: it makes it, too, with a neutral contribution.

Neutral is what leaves the result as the other ranks make it: 0 for a sum, the lowest value for a maximum. Where ranks
are kept apart (gathers, all-to-all) the neutral contribution is zeros of the right shape; a None among objects.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ddpsim.ddp.collectives import NO_ROOT, Collective
from ddpsim.ddp.operations import TABLE, Part


def take_part(collective: Collective, group: ProcessGroup, device: torch.device) -> None:
    """Make the collective with a neutral contribution, and wait until it is over.

    `device` is where tensors live, unless the collective is about another type of device.
    """
    if collective.device_type != device.type:
        device = torch.device(collective.device_type)
    contribution = _object if collective.holds_object else _neutral
    tensors = [contribution(collective, shape, device) for shape in collective.shapes]
    take = TABLE[collective.operation].take
    assert take is not None, f"nobody is asked to take part in {collective}"
    take(Part(collective.operation, group, tensors, _op(collective), _root(collective, group)))


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


def _root(collective: Collective, group: ProcessGroup) -> int:
    return NO_ROOT if collective.root == NO_ROOT else dist.get_global_rank(group, collective.root)
