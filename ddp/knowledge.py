"""What a reducer finds out by training, as one tensor: ranks that joined before they saw it take it over afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 4


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Of one reducer; everything by index of the parameter."""

    backwards: int
    """How many have been reduced."""
    order: tuple[int, ...] | None
    """Of the gradients, if a backward has shown it."""
    times: tuple[int, ...] | None
    """How often each parameter gets a gradient in a static graph, if the first backward has shown it."""
    unused_everywhere: frozenset[int]
    """Parameters of a static graph that no rank uses."""

    def encode(self, count: int) -> Tensor:
        """As int64 [4, count + 1]: each row begins with a number, or with whether it is known."""
        rows = torch.zeros(_ROWS, count + 1, dtype=torch.int64)
        rows[0, 0] = self.backwards
        for row, values in ((1, self.order), (2, self.times)):
            if values is not None:
                rows[row] = torch.tensor([1, *values])
        rows[3, [index + 1 for index in self.unused_everywhere]] = 1
        return rows

    @classmethod
    def decode(cls, tensor: Tensor) -> Knowledge:
        """From `encode`."""
        backwards, order, times, unused = tensor.tolist()
        return cls(
            backwards[0],
            tuple(order[1:]) if order[0] else None,
            tuple(times[1:]) if times[0] else None,
            frozenset(index for index, flag in enumerate(unused[1:]) if flag),
        )
