"""Parameters that a program averages itself, every few steps or at once, as local SGD does without a wrapper.

A parameter that the program brought to an all_reduce (its `.data`, or itself) is a replica on the ranks of that group
from then on until the next training forward begins, or the program returns. It is so if it holds the sum then, as it is
or scaled: a program that goes on to train before that, or that only looks at the sum, is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.calls import Call
from ddpsim.simulator.replicas.flat_gradients import is_scaled
from ddpsim.simulator.replicas.replica_tensors import Named
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.transport.modes import without_modes


class _Summed:
    """A parameter, and the result of its all_reduce."""

    def __init__(self, parameter: Named, pending: Pending, tensor: Tensor) -> None:
        self.parameter = parameter
        self.pending = pending
        self.size = len(pending.members)  # as ranks that are processes do not have them later
        self._sum: Tensor | None = None

        def keep_sum() -> None:
            with torch.no_grad(), without_modes():
                self._sum = tensor.detach().clone()

        pending.when_moved = keep_sum

    def is_held(self) -> bool:
        """True if the parameter holds the sum now, as it is or scaled."""
        if self._sum is None or not self.pending.is_complete:
            return False
        with torch.no_grad(), without_modes():
            now, total = self.parameter.tensor.detach().reshape(-1), self._sum.reshape(-1)
            return is_scaled(now, total) if total.any() else not now.any()


class Average(NamedTuple):
    """What one group of a rank has averaged since the last forward."""

    latest: Call
    size: int
    """How many ranks the group has."""
    parameters: list[Named]


class AveragedParameters:
    """The averaged parameters of one rank."""

    def __init__(self) -> None:
        self._summed: dict[int, _Summed] = {}
        """By the id of the parameter: its latest call."""

    def note(self, parameter: Named, pending: Pending, moved: Tensor) -> None:
        """Record that the program passes a parameter to a call; `moved` is the tensor that the call works on."""
        self._summed.pop(id(parameter.tensor), None)
        self._summed[id(parameter.tensor)] = _Summed(parameter, pending, moved)

    def taken(self) -> Mapping[str, Average]:
        """Return the replicas by group, just before they are trained on, and forget them."""
        by_group: dict[str, list[_Summed]] = {}
        for each in self._summed.values():
            by_group.setdefault(each.pending.call.group, []).append(each)
        self._summed = {}
        return {
            group: Average(summed[-1].pending.call, summed[-1].size, [each.parameter for each in summed])
            for group, summed in by_group.items()
            if all(each.is_held() for each in summed)
        }
