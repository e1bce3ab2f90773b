"""What the process of a rank reports, as values that are sent between processes and machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.calls import Site


class RankEnding(Enum):
    """How a rank's program ended."""

    RETURNED = "returned"
    RAISED = "raised"
    """It raised an error of its own or of gloo."""
    HUNG = "hung"
    """Nothing in it moved for longer than the time-out."""
    DIED = "died"
    """Its process ended without a report."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The error that a rank's program raised."""

    line: str
    """Type and message, in one line."""
    traceback: str
    """The user's frames."""
    site: Site | None
    """The innermost line of the user's program in the traceback."""
    unused: tuple[str, ...] = ()
    """The parameters that the error names as having no gradient."""
    pickled: bytes | None = None
    """The exception itself; None if it cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is in its program."""

    idle_seconds: float
    """For how long it has made no progress."""
    site: Site | None
    """The innermost line of the user's program."""
    stack: str
    calls: tuple[str, ...]
    """Its last calls, the latest at the end."""
    is_idle: bool = True
    """False if it had made progress within the time-out."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """How one rank ended."""

    rank: int
    ending: RankEnding
    seconds: float
    """When it ended, in seconds since the epoch."""
    has_started: bool = True
    """False if it never reached the first line of its program."""
    value: bytes | None = None
    """The program's return value, pickled; None if it cannot be pickled."""
    error: ErrorReport | None = None
    position: Position | None = None
    death: str = ""
    """How a process without a report ended: `signal SIGKILL`, or `exit status 3`."""
    last_words: tuple[str, ...] = ()
    """What such a process last wrote to stderr."""
