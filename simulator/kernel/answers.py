"""Answers of the kernel to requests, as frozen values."""

from __future__ import annotations

from typing import Any, NamedTuple

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.faults import Crash, EarlyReturn

# --- final answers ----------------------------------------------------------------------------------------------------


class Continue(NamedTuple):
    """The request is done; the caller continues with `value`."""

    value: Any = None


class Unwind(NamedTuple):
    """The caller must leave its program, because the execution or its rank has ended."""


class StrikeFault(NamedTuple):
    """An injected fault strikes the caller, and again at each call that it makes while it unwinds."""

    fault: Crash | EarlyReturn
    call_number: int


class RejectRequest(NamedTuple):
    """The request was invalid; the caller's program gets an error."""

    kind: str
    text: str


# --- intermediate -----------------------------------------------------------------------------------------------------


class SwitchTask(NamedTuple):
    """The caller waits until it gets the baton back. `to` is the next task; None once all tasks have ended."""

    to: int | None


class DeliverCompletion(NamedTuple):
    """A call of the caller's rank is complete: the host sets the call's futures on the caller's thread."""

    handle: int


class MoveTensors(NamedTuple):
    """Calls of several ranks match: the host moves their data."""

    signature: Signature
    calls: tuple[tuple[int, int], ...]
    """Rank and handle of each call, in the order of the group's members. For a message: the sender's first."""
    members: tuple[int, ...]
    """The global ranks of the group."""


class ReportStack(NamedTuple):
    """The host is asked for the current stack of the caller's program."""


class AwaitExternalThreads(NamedTuple):
    """No task can run. The host is asked to wait for a thread that belongs to no rank and may wake one."""


Answer = (
    Continue
    | Unwind
    | StrikeFault
    | RejectRequest
    | SwitchTask
    | DeliverCompletion
    | MoveTensors
    | ReportStack
    | AwaitExternalThreads
)

GO_ON = Continue()
IN_TIME = Continue(value=True)
UNWIND = Unwind()
