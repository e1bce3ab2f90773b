"""The report of a rank process: values that are sent between processes and machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.calls import Site


class RankEnding(Enum):
    """The ways in which a rank's program ends."""

    RETURNED = "returned"
    RAISED = "raised"
    """The program raised an error, its own or gloo's."""
    HUNG = "hung"
    """The program made no progress for longer than the time-out."""
    DIED = "died"
    """The process of the rank ended without a report."""


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
class RankPosition:
    """The position of a rank in its program."""

    idle_seconds: float
    """For how long the rank has made no progress."""
    site: Site | None
    """The innermost line of the user's program."""
    stack: str
    calls: tuple[str, ...]
    """The rank's last calls, the latest at the end."""
    is_idle: bool = True
    """False if the rank made progress within the time-out."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank: how it ended."""

    rank: int
    ending: RankEnding
    seconds: float
    """The time of its end, in seconds since the epoch."""
    has_started: bool = True
    """False if the rank never reached the first line of its program."""
    value: bytes | None = None
    """The program's return value, pickled; None if it cannot be pickled."""
    error: ErrorReport | None = None
    position: RankPosition | None = None
    death: str = ""
    """How a process without a report ended: `signal SIGKILL`, or `exit status 3`."""
    last_words: tuple[str, ...] = ()
    """The last lines that such a process wrote to stderr."""
