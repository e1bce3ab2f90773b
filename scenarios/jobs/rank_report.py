"""The report of a rank that is a process, as values that are sent between processes and machines."""

from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.calls import Site


class RankEnding(Enum):
    """The ways in which the program of a rank ends."""

    RETURNED = "returned"
    RAISED = "raised"
    """The program raised an error, its own or an error of gloo."""
    HUNG = "hung"
    """The program made no progress for longer than the time-out."""
    DIED = "died"
    """The process of the rank ended without a report."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error that a rank's program raised."""

    line: str
    """The type and message of the error, in one line."""
    traceback: str
    """The traceback of the error, with the frames of the user's program."""
    site: Site | None
    """The innermost line of the user's program in the traceback."""
    unused: tuple[str, ...] = ()
    """The parameters that the error names as having no gradient."""
    pickled: bytes | None = None
    """The exception itself; None if it cannot be pickled."""


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of a rank in its program."""

    idle_seconds: float
    """For how many seconds the rank has made no progress."""
    site: Site | None
    """The innermost line of the user's program that the rank is executing."""
    stack: str
    calls: tuple[str, ...]
    """The rank's last calls, the latest at the end."""
    is_idle: bool = True
    """True if the rank has made no progress for the time-out; False if it has."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank: how it ended."""

    rank: int
    ending: RankEnding
    seconds: float
    """The time at which the rank ended, in seconds since the epoch."""
    has_started: bool = True
    """False if the rank never reached the first line of its program."""
    value: bytes | None = None
    """The program's return value, pickled; None if it cannot be pickled."""
    error: ErrorReport | None = None
    position: RankPosition | None = None
    death: str = ""
    """How a process without a report ended: `signal SIGKILL`, or `exit status 3`."""
    last_words: tuple[str, ...] = ()
    """The last lines that a process without a report wrote to stderr."""
