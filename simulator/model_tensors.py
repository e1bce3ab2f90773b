"""The tensors of a model on several ranks: their names, which part of the whole a rank holds, whether two are equal.

The check of replicas, `compare` and the oracle of scenarios align and compare tensors by what is here.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)(?:\.|$)"
)
"""Matches the parts of a name that wrappers add: DDP, torch.compile, FSDP, activation checkpointing and Fabric."""


def name_without_wrappers(name: str) -> str:
    """Return the name of a module or parameter as it is without the wrappers around modules."""
    return _WRAPPERS.sub("", name)


def parameter_ids_of(optimizer: Any) -> set[int]:
    """Return the ids of the parameters that an optimizer changes."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def optimizer_state_of(parameters: Iterable[tuple[str, Any]], optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of an optimizer's state that have the same shape as their parameter, with a name each."""
    for name, parameter in parameters:
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                yield f"{key} of {name}", value


def is_placed(tensor: Any) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "placements")


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank holds, without its autograd graph; it is dense."""
    own: Tensor = (tensor._local_tensor if is_placed(tensor) else tensor).detach()
    return own if own.layout is torch.strided else own.to_dense()


def offsets_in_whole(tensor: Any) -> tuple[int, ...]:
    """Return where in the whole tensor the part of this rank begins, by dimension."""
    if not is_placed(tensor):
        return (0,) * int(tensor.dim())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets)


def region_of(offsets: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices that cut a part of this shape out of a whole tensor."""
    return tuple(slice(start, start + size) for start, size in zip(offsets, shape, strict=True))


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Return how far two tensors of one shape are apart, by element; NaN equals NaN and nothing else."""
    exact = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    apart = (first.to(exact) - second.to(exact)).abs()
    is_same = (first == second) | (first.isnan() & second.isnan())
    least = torch.finfo(torch.float64).tiny  # large integers may be different, and one double
    return torch.where(is_same, 0.0, torch.where(apart.isnan(), torch.inf, apart.clamp(min=least)))


def are_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have one shape and type, and equal values; NaN equals NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first, second) or not distances(first, second).any()


def first_different_index(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """Return the index of the first element in which two tensors differ; () for scalars and for different shapes."""
    if first.shape != second.shape or not first.dim():
        return ()
    return tuple(next(iter(distances(first, second).nonzero().tolist()), ()))


def fitted_factor(value: Any, one: Any) -> float:
    """Return the number by which a tensor or array is best made from another one, that is not all zero."""
    own, other = value.reshape(-1), one.reshape(-1)
    return float((own @ other) / (other @ other))
