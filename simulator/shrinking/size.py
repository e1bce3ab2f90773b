"""The size of a failing program and schedule: the order in which shrinking compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Size(NamedTuple):
    """How large something that fails is. The smaller in this order is the simpler: first the ranks count, last choices.

    So a program of fewer ranks is simpler, however many calls it has, and a failure on the default schedule is simpler
    than one of the same program on any other (shortlex, as Hypothesis orders what it draws).
    """

    ranks: int
    steps: int
    """Of a program, those of all ranks; of a training, the iterations of all ranks."""
    calls: int = 0
    """Of a program, those of all ranks; of a training, its networks, its faults and what its exceptions name."""
    groups: int = 0
    """Besides the default one."""
    shapes: int = 0
    """How far numbers are from the plain ones: shapes, splits, roots and tags; rows and the networks' options."""
    options: int = 0
    """How far words are from the plainest: dtypes, reductions, networks, features; and waits later than their call."""
    switches: int = 0
    """Choices of the schedule that are not the default."""
    choices: int = 0
    """How many choices come before the last switch, with it."""
    total: int = 0
    """All choices added up."""

    def under(self, choices: Sequence[int]) -> Size:
        """The size of the same under a schedule."""
        return self._replace(switches=sum(1 for each in choices if each), choices=len(choices), total=sum(choices))
