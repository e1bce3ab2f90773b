"""A case of the table, and how a value that came out is compared with the one worked out.

A case knows no transport: its program is plain torch.distributed, its expectation plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """One program for every rank of a world, and the value it must return there.

    `program` finds the default group initialised. `expected` never communicates. A case that real gloo cannot do says
    why: `gloo_refuses` is part of the error gloo raises instead of moving the data, `gloo_departs` says how its result
    is wrong. `gloo_lacks` is part of the error of something around it that gloo's own process group does not offer:
    the simulator's group does, whatever moves the data.
    """

    id: str
    world_size: int
    program: Callable[[int], object]
    expected: Callable[[int], object]
    tolerance: float = 0.0
    gloo_refuses: str | None = None
    gloo_departs: str | None = None
    gloo_lacks: str | None = None


def difference(actual: object, expected: object, *, tolerance: float = 0.0, path: str = "value") -> str | None:
    """Say where `actual` differs from `expected`; None if it does not.

    Tensors must agree in type, dtype, layout, shape and every element, within `tolerance` (absolute and relative).
    """
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, tolerance=tolerance, path=path)
    if type(actual) is not type(expected):
        return f"{path}: {actual!r} is not a {type(expected).__name__}"
    if isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            return f"{path}: {len(actual)} items instead of {len(expected)}: {actual!r}"
        return _first(
            difference(mine, theirs, tolerance=tolerance, path=f"{path}[{index}]")
            for index, (mine, theirs) in enumerate(zip(actual, expected, strict=True))
        )
    if isinstance(expected, dict):
        if list(actual) != list(expected):
            return f"{path}: keys {list(actual)} instead of {list(expected)}"
        return _first(
            difference(actual[key], value, tolerance=tolerance, path=f"{path}[{key!r}]")
            for key, value in expected.items()
        )
    return None if actual == expected else f"{path}: {actual!r} instead of {expected!r}"


def _tensor_difference(actual: object, expected: torch.Tensor, *, tolerance: float, path: str) -> str | None:
    if type(actual) is not type(expected):
        return f"{path}: a {type(actual).__name__} instead of a {type(expected).__name__}"
    for name in ("dtype", "layout", "shape"):
        mine, theirs = getattr(actual, name), getattr(expected, name)
        if mine != theirs:
            return f"{path}: {name} {mine} instead of {theirs}"
    mine, theirs = actual.detach().to_dense(), expected.detach().to_dense()
    if torch.equal(mine, theirs) or (tolerance and torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)):
        return None
    return f"{path}: {_shortened(mine)} instead of {_shortened(theirs)}"


def _shortened(tensor: torch.Tensor) -> str:
    values = tensor.reshape(-1)[:8].tolist()
    return f"{values}{'...' if tensor.numel() > 8 else ''}"


def _first(differences: Iterable[str | None]) -> str | None:
    return next((found for found in differences if found is not None), None)
