"""Answers: what the kernel says to a request, as frozen values."""

from __future__ import annotations

from typing import Any, NamedTuple

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.faults import Crash, EarlyReturn

# --- that end a request -----------------------------------------------------------------------------------------------


class GoOn(NamedTuple):
    """The request is served."""

    value: Any = None


class Unwind(NamedTuple):
    """Leave the program: the execution, or the caller's rank, is over."""


class Strike(NamedTuple):
    """A fault strikes the caller, and again at each call that it begins on its way out."""

    fault: Crash | EarlyReturn
    call_number: int


class Refuse(NamedTuple):
    """The request was wrong; the caller's program gets an error."""

    kind: str
    text: str


# --- on the way -------------------------------------------------------------------------------------------------------


class Switch(NamedTuple):
    """The caller waits until it gets the baton back; `to` has it next, or nobody once all have ended."""

    to: int | None


class Deliver(NamedTuple):
    """A call of the caller's rank is complete: set its futures and run their chains, as the caller."""

    handle: int


class Move(NamedTuple):
    """Calls have met and agree: move their data."""

    signature: Signature
    calls: tuple[tuple[int, int], ...]
    """Rank and handle of each, in the order of the group's members; of a message, the sender's first."""
    members: tuple[int, ...]
    """The global ranks of the group."""


class TellStack(NamedTuple):
    """Say where the caller's program stands."""


class LookOutside(NamedTuple):
    """Nobody can go on, unless a thread that is none of a rank's wakes somebody."""


Answer = GoOn | Unwind | Strike | Refuse | Switch | Deliver | Move | TellStack | LookOutside

GO_ON = GoOn()
IN_TIME = GoOn(value=True)
UNWIND = Unwind()
