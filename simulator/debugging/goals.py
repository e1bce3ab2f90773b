"""Goals: the points at which a debugged run pauses next, as values, and the commands that set them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.debugging.session_host import CannotError


class AtStep(NamedTuple):
    """Pause before the choice point with this number, in whichever rank is there."""

    step: int


class AtRequest(NamedTuple):
    """Pause before the request with this number, counted from 1, of those where another rank may run first."""

    number: int


class AtStart(NamedTuple):
    """Pause at the first line of a rank's program."""

    rank: int


class NextCall(NamedTuple):
    """Pause where a rank makes its next call."""

    rank: int


class UntilCall(NamedTuple):
    """Pause where any rank makes a given call, such as all_reduce #9."""

    operation: str
    sequence: int

    def is_it(self, call: Call) -> bool:
        """True if a call is the one of this goal."""
        return call.operation == self.operation and call.sequence == self.sequence


class CallOfRank(NamedTuple):
    """Pause where a rank makes its call with this number, counted over all groups from 0."""

    rank: int
    number: int


class GoesOn(NamedTuple):
    """Pause where a rank runs next."""

    rank: int


Goal = AtStep | AtRequest | AtStart | NextCall | UntilCall | CallOfRank | GoesOn


class GoBackError(Exception):
    """Ends a run so that it can be replayed, with the choices made so far, up to an earlier point."""

    def __init__(self, goal: Goal, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.goal = goal
        self.choices = choices

    def __reduce__(self) -> tuple[type[GoBackError], tuple[Goal, tuple[int, ...]]]:
        return type(self), (self.goal, self.choices)


_CALL = re.compile(r"call\s+(\w+)\s+#?(\d+)")


def until_call(argument: str) -> UntilCall:
    """Return the goal of `until call all_reduce #9`. Raises CannotError for other words."""
    found = _CALL.fullmatch(argument.strip())
    if found is None:
        raise CannotError(f"found {argument.strip()!r}, expected an operation and its number: as in call all_reduce #9")
    return UntilCall(found[1], int(found[2]))
