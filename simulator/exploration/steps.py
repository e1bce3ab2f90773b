"""Steps of a run, their vector clocks, and races (two steps that could have come in either order)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

Clock = list[int]
"""A vector clock: by rank, how many of its steps came before. Threads that were started later are left out.

Never changed after it was given to a rank, a call or a key.
"""


class Step:
    """One step that others can observe."""

    __slots__ = ("clock", "node", "number", "position", "rank")

    def __init__(self, position: int, rank: int, number: int, clock: Clock, node: int | None) -> None:
        self.position = position
        """Index among all steps of the run."""
        self.rank = rank
        self.number = number
        """Number among the rank's steps, from 1."""
        self.clock = clock
        """The vector clock, this step included."""
        self.node = node
        """The index of the node that chose the rank; None if no other rank could run."""


class Race(NamedTuple):
    """Two steps that could have come in either order."""

    earlier: Step
    later: Step


def initials(race: Race, steps: Sequence[Step]) -> list[int]:
    """Return the ranks that can run instead of the earlier step, so that the later step comes before it.

    Let `v` be the steps after the earlier one that do not depend on it, up to the later one. The result is the ranks
    whose first step in `v` has no other step of `v` before it. `steps` are all steps of the run, by position.
    """
    earlier, later = race
    firsts: dict[int, int] = {}
    found = []
    for step in (*steps[earlier.position + 1 : later.position], later):
        if step.rank in firsts or (step is not later and knows(step.clock, earlier.rank, earlier.number)):
            continue
        if not any(knows(step.clock, rank, number) for rank, number in firsts.items()):
            found.append(step.rank)
        firsts[step.rank] = step.number
    return found


def knows(clock: Clock, rank: int, number: int) -> bool:
    """True if a rank's step of this number happened before the clock."""
    return rank < len(clock) and clock[rank] >= number


def joined(clocks: Iterable[Clock]) -> Clock:
    """Return the join (element-wise maximum) of several clocks."""
    return list(map(max, zip_longest(*clocks, fillvalue=0)))
