"""Where a run that is debugged is to stop next, as values, and the commands that say so."""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.debugging.session_host import CannotError


class AtStep(NamedTuple):
    """Before the choice point of that number, whoever stands there."""

    step: int


class AtRequest(NamedTuple):
    """Before the request of that number, counted from 1, at which a rank may be overtaken."""

    number: int


class AtStart(NamedTuple):
    """At the first line of the program of a rank."""

    rank: int


class NextCall(NamedTuple):
    """Where a rank makes its next call."""

    rank: int


class UntilCall(NamedTuple):
    """Where a rank makes a call of that operation and number."""

    operation: str
    sequence: int

    def is_it(self, call: Call) -> bool:
        """True for such a call."""
        return call.operation == self.operation and call.sequence == self.sequence


class CallOfRank(NamedTuple):
    """Where a rank makes its call of that number, counted over all groups from 0."""

    rank: int
    number: int


class GoesOn(NamedTuple):
    """Where a rank goes on."""

    rank: int


Goal = AtStep | AtRequest | AtStart | NextCall | UntilCall | CallOfRank | GoesOn


class GoBackError(Exception):
    """Ends a run that is to be run again, up to an earlier point: the past is a schedule."""

    def __init__(self, goal: Goal, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.goal = goal
        self.choices = choices

    def __reduce__(self) -> tuple[type[GoBackError], tuple[Goal, tuple[int, ...]]]:
        return type(self), (self.goal, self.choices)


_CALL = re.compile(r"call\s+(\w+)\s+#?(\d+)")


def until_call(argument: str) -> UntilCall:
    """The goal of `until call all_reduce #9`. Raises CannotError for other words."""
    found = _CALL.fullmatch(argument.strip())
    if found is None:
        raise CannotError(f"found {argument.strip()!r}, expected an operation and its number: as in call all_reduce #9")
    return UntilCall(found[1], int(found[2]))


def call_before(rank: int, calls_made: int) -> CallOfRank:
    """The goal of `back call`. Raises CannotError if a rank has made none."""
    if not calls_made:
        raise CannotError(f"rank {rank} has made no call yet, expected one to go back to")
    return CallOfRank(rank, calls_made - 1)


def step_before(requests: int, *, is_made: bool) -> AtRequest:
    """The goal of `back`, after so many requests, of which the latest is made or about to be.

    Raises CannotError at the beginning.
    """
    number = requests if is_made else requests - 1
    if number < 1:
        raise CannotError("this is the beginning of the run, expected a step to go back to")
    return AtRequest(number)
