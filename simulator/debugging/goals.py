"""Goals: the points at which a debugged run pauses next, as values, and the commands that set them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.debugging.session_host import DebuggerCommandError


class PauseAtStep(NamedTuple):
    """Pause before the step with this number, in whichever rank runs then."""

    step: int


class PauseAtRequest(NamedTuple):
    """Pause before a request with this number, counted from 1.

    Only requests at which another rank may run first count.
    """

    number: int


class PauseAtStart(NamedTuple):
    """Pause at the first line of a rank's program."""

    rank: int


class PauseAtNextCall(NamedTuple):
    """Pause where a given rank makes its next communication call."""

    rank: int


class PauseAtCall(NamedTuple):
    """Pause where any rank makes a given call, such as all_reduce #9."""

    operation: str
    sequence: int

    def matches_call(self, call: Call) -> bool:
        """True if a call is the one at which this goal pauses."""
        return call.operation == self.operation and call.sequence == self.sequence


class PauseAtCallOfRank(NamedTuple):
    """Pause where a rank makes its call with this number, counted over all its groups from 0."""

    rank: int
    number: int


class PauseWhereRankRuns(NamedTuple):
    """Pause as soon as a given rank runs next."""

    rank: int


Goal = (
    PauseAtStep | PauseAtRequest | PauseAtStart | PauseAtNextCall | PauseAtCall | PauseAtCallOfRank | PauseWhereRankRuns
)


class GoBackError(Exception):
    """Raised to end a run, which is then replayed with the choices made so far, up to an earlier point."""

    def __init__(self, goal: Goal, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.goal = goal
        self.choices = choices

    def __reduce__(self) -> tuple[type[GoBackError], tuple[Goal, tuple[int, ...]]]:
        return type(self), (self.goal, self.choices)


_CALL = re.compile(r"call\s+(\w+)\s+#?(\d+)")


def parse_until_call(argument: str) -> PauseAtCall:
    """Return the goal of `until call all_reduce #9`. Raises DebuggerCommandError for other words."""
    found = _CALL.fullmatch(argument.strip())
    if found is None:
        raise DebuggerCommandError(
            f"found {argument.strip()!r}, expected an operation and its number: as in call all_reduce #9"
        )
    return PauseAtCall(found[1], int(found[2]))
