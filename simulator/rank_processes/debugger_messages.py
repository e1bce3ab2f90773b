"""Messages between a debugger in a rank's process and the coordinator. None of them is a step of the run."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.debugging.session_host import Topic

# --- from a rank, not answered ----------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A debugger session has begun."""


class Closed(NamedTuple):
    """A debugger session has ended."""


class Show(NamedTuple):
    """A text to show to the user."""

    text: str


class Looked(NamedTuple):
    """A visit to this rank has ended."""

    then: str = ""


# --- from a rank, answered --------------------------------------------------------------------------------------------


class ReadLine(NamedTuple):
    """Show a text, the last line of which is a prompt, and read a line. Answered by `Typed`."""

    text: str


class Tell(NamedTuple):
    """Ask for information on all ranks. Answered by `Told`."""

    topic: Topic
    argument: str
    stack: str
    """Where the rank stands itself."""


class VisitRank(NamedTuple):
    """Open a debugger in another rank. Answered by `Visited`, of `simulator/debugging`; None if the run ends."""

    rank: int


class Direct(NamedTuple):
    """Choose how the run continues. Answered by `Told`."""

    command: str


DebuggerMessage = Opened | Closed | Show | Looked | ReadLine | Tell | VisitRank | Direct | Breakpoints
"""`Breakpoints`, which are not answered, are to hold in all ranks."""


# --- from the coordinator ---------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Sent before the answer that the rank waits for: open a debugger in it. The answer follows later."""


class Typed(NamedTuple):
    """The line that was typed; None at the end of the input."""

    line: str | None
    is_over: bool = False
    """The run ends: leave the program."""
    problem: str = ""
    """Why nobody can type."""


class Told(NamedTuple):
    """The information that was asked for."""

    text: str = ""
    problem: str = ""
    """Why it cannot be had."""
    is_over: bool = False
    """The run ends: leave the program."""
