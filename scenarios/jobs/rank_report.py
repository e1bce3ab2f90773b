"""What the process of a rank reports, as values that travel between processes and machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.calls import Site


class RankEnding(Enum):
    """How a rank's program ended."""

    RETURNED = "returned"
    RAISED = "raised"
    """An error of its own or one of gloo."""
    HUNG = "hung"
    """Nothing in it moved for longer than the time-out."""
    DIED = "died"
    """Its process ended before it had said anything."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What a rank's program raised."""

    line: str
    """Type and message, in one line."""
    traceback: str
    """The user's frames."""
    site: Site | None
    """The innermost line of the user's program that it passed."""
    unused: tuple[str, ...] = ()
    """The parameters that it says got no gradient."""
    pickled: bytes | None = None
    """The exception itself; None if it cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank stands."""

    idle_seconds: float
    """For how long it has made no progress."""
    site: Site | None
    """The innermost line of the user's program."""
    stack: str
    calls: tuple[str, ...]
    """Its last calls, the latest at the end."""
    is_idle: bool = True
    """False if it had got on within the time-out."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """What became of one rank."""

    rank: int
    ending: RankEnding
    seconds: float
    """When, in seconds since the epoch."""
    has_started: bool = True
    """False if it never came to the first line of its program."""
    value: bytes | None = None
    """What the program returned, pickled; None if it cannot be."""
    error: ErrorReport | None = None
    position: Position | None = None
    death: str = ""
    """How a process ended that said nothing: `signal SIGKILL`, or `exit status 3`."""
    last_words: tuple[str, ...] = ()
    """What such a process last wrote to stderr."""
