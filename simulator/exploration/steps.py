"""Steps of a run, what was known in them, and races: of which two either could have come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

Clock = list[int]
"""For each rank, how many of its steps are known to have come before; threads that were not started yet are left out.

Never changed once it is somebody's.
"""


class Step:
    """One step that others can observe."""

    __slots__ = ("clock", "node", "number", "position", "rank")

    def __init__(self, position: int, rank: int, number: int, clock: Clock, node: int | None) -> None:
        self.position = position
        """In the run."""
        self.rank = rank
        self.number = number
        """Among the rank's steps, from 1."""
        self.clock = clock
        """Itself included."""
        self.node = node
        """Where the rank was chosen for it; None if it had no rival."""


class Race(NamedTuple):
    """Two steps of which either could have come first."""

    earlier: Step
    later: Step


def initials(race: Race, steps: Sequence[Step]) -> list[int]:
    """Who can go first, in the place of the earlier step, to let the later one come before it.

    With `v` for what came after the earlier step and does not need it, up to the later step: the ranks whose first step
    in `v` has no other step of `v` before it. `steps` are those of the run, by position.
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
    """True if a step of a rank, by its number, is known to have come before."""
    return rank < len(clock) and clock[rank] >= number


def joined(clocks: Iterable[Clock]) -> Clock:
    """What is known by somebody of several."""
    return list(map(max, zip_longest(*clocks, fillvalue=0)))
