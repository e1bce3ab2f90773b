"""Messages between a debugger in a rank's process and the coordinator; none is a step of the run.

The coordinator sends `OpenDebugger` and `DebuggerReply`.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.debugging.session_host import DebuggerTopic


class SessionOpened(NamedTuple):
    """A debugger session has begun."""


class SessionClosed(NamedTuple):
    """A debugger session has ended."""


class ShowText(NamedTuple):
    """A text to show to the user."""

    text: str


class VisitEnded(NamedTuple):
    """The debugger that `OpenDebugger` has opened in this rank has ended."""

    then: str = ""
    """The command that ended it, such as "rank 2"; "" to return to the rank that asked."""


class ReadLine(NamedTuple):
    """Show a text, the last line of which is a prompt, and read a line. Answered by `DebuggerReply`."""

    text: str


class QueryRanks(NamedTuple):
    """Ask for information on all ranks. Answered by `DebuggerReply`."""

    topic: DebuggerTopic
    argument: str
    stack: str
    """The stack of the rank that asks."""


class VisitRank(NamedTuple):
    """Open a debugger in another rank. Answered by `VisitResult`, of `simulator/debugging`, or by `DebuggerReply` if
    the run ends."""

    rank: int


class DirectRun(NamedTuple):
    """Choose how the run continues. Answered by `DebuggerReply`."""

    command: str


DebuggerMessage = (
    SessionOpened | SessionClosed | ShowText | VisitEnded | ReadLine | QueryRanks | VisitRank | DirectRun | Breakpoints
)
"""All messages of a debugger; `Breakpoints` are set in all ranks, and not answered."""


class OpenDebugger(NamedTuple):
    """Open a debugger in a rank that waits for an answer; the answer follows later."""


class DebuggerReply(NamedTuple):
    """The answer to a debugger: a line that the user typed, or information."""

    text: str | None = ""
    """The text; None at the end of the input."""
    problem: str = ""
    """The error message, if there is no text."""
    is_over: bool = False
    """The run ends: leave the program."""
