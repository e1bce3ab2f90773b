"""Messages between a debugger in a rank's process and the coordinator; none is a step of the run.

The coordinator sends `Look` and `DebuggerReply`.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.debugging.session_host import Topic


class Opened(NamedTuple):
    """A debugger session has begun."""


class Closed(NamedTuple):
    """A debugger session has ended."""


class Show(NamedTuple):
    """A text to show to the user."""

    text: str


class Looked(NamedTuple):
    """The debugger that `Look` has opened in this rank has ended."""

    then: str = ""
    """The command that ended it, such as "rank 2"; "" to return to the rank that asked."""


class ReadLine(NamedTuple):
    """Show a text, the last line of which is a prompt, and read a line. Answered by `DebuggerReply`."""

    text: str


class Tell(NamedTuple):
    """Ask for information on all ranks. Answered by `DebuggerReply`."""

    topic: Topic
    argument: str
    stack: str
    """The stack of the rank that asks."""


class VisitRank(NamedTuple):
    """Open a debugger in another rank. Answered by `Visited`, of `simulator/debugging`; None if the run ends."""

    rank: int


class Direct(NamedTuple):
    """Choose how the run continues. Answered by `DebuggerReply`."""

    command: str


DebuggerMessage = Opened | Closed | Show | Looked | ReadLine | Tell | VisitRank | Direct | Breakpoints
"""All messages of a debugger; `Breakpoints` are set in all ranks, and not answered."""


class Look(NamedTuple):
    """Open a debugger in a rank that waits for an answer; the answer follows later."""


class DebuggerReply(NamedTuple):
    """The answer to a debugger: a line that the user typed, or information."""

    text: str | None = ""
    """The text; None at the end of the input."""
    problem: str = ""
    """The error message, if there is no text."""
    is_over: bool = False
    """The run ends: leave the program."""
