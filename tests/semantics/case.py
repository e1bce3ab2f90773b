"""A case of the table, and how a value that came out is compared with the one worked out.

A case knows no transport: its program is plain torch.distributed, its expectation plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten_with_path


@dataclass(frozen=True, slots=True)
class Case:
    """One program for every rank of a world, and the value it must return there.

    `program` finds the default group initialised. `expected` never communicates. `gloo_refuses` is part of the error
    that gloo raises instead of moving the data.
    """

    id: str
    world_size: int
    program: Callable[[int], object]
    expected: Callable[[int], object]
    tolerance: float = 0.0
    gloo_refuses: str | None = None


def difference(actual: object, expected: object, *, tolerance: float = 0.0) -> str | None:
    """Say where `actual` differs from `expected`; None if it does not.

    Containers and what is no tensor must be equal and of one type; tensors must agree in type, dtype, layout, shape and
    every element, within `tolerance` (absolute and relative).
    """
    (mine, form), (theirs, wanted) = tree_flatten_with_path(actual), tree_flatten_with_path(expected)
    if form != wanted:
        return f"{actual!r} has another form than {expected!r}"
    for (path, value), (_, goal) in zip(mine, theirs, strict=True):
        if type(value) is not type(goal):
            return f"{list(path)}: {value!r} is not a {type(goal).__name__}"
        if not isinstance(goal, torch.Tensor):
            if value != goal:
                return f"{list(path)}: {value!r} instead of {goal!r}"
            continue
        try:
            assert value.layout == goal.layout, f"{value.layout} instead of {goal.layout}"
            assert_close(value.to_dense(), goal.to_dense(), rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            return f"{list(path)}: {error}"
    return None
