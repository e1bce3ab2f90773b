"""What a debugger in the process of a rank and the coordinator say to each other. None of it is a step of the run."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.debugging.session_host import Topic

# --- from a rank, not answered ----------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A debugger has the word."""


class Closed(NamedTuple):
    """It has given it back."""


class Show(NamedTuple):
    """A text to be shown."""

    text: str


class Looked(NamedTuple):
    """A look into the rank is over."""

    then: str = ""


# --- from a rank, answered --------------------------------------------------------------------------------------------


class ReadLine(NamedTuple):
    """A text to be shown, the last line of which is a prompt, and a line to be read. Answered by `Typed`."""

    text: str


class Tell(NamedTuple):
    """What is to be said of all ranks? Answered by `Told`."""

    topic: Topic
    argument: str
    stack: str
    """Where the rank stands itself."""


class VisitRank(NamedTuple):
    """Let a debugger look into another rank. Answered by `Visited`, of `simulator/debugging`; None if the run ends."""

    rank: int


class Direct(NamedTuple):
    """How the run is to go on. Answered by `Told`."""

    command: str


DebuggerMessage = Opened | Closed | Show | Looked | ReadLine | Tell | VisitRank | Direct | Breakpoints
"""`Breakpoints`, which are not answered, are to hold in all ranks."""


# --- from the coordinator ---------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Instead of an answer to what the rank waits for: let a debugger look into it. That one comes afterwards."""


class Typed(NamedTuple):
    """A line; None where there is no more."""

    line: str | None
    is_over: bool = False
    """The run ends: leave the program."""
    problem: str = ""
    """Why nobody can type."""


class Told(NamedTuple):
    """What was asked for."""

    text: str = ""
    problem: str = ""
    """Why it cannot be had."""
    is_over: bool = False
    """The run ends: leave the program."""
