"""What became of a rank of a program, on the simulator or in a real process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Ending(Enum):
    """How a rank's program ended."""

    RETURNED = "returned"
    RAISED = "raised"
    """An error of its own or one of gloo."""
    HUNG = "hung"
    """It ran into the time-out, gloo's or that of who watched it."""
    DIED = "died"
    """Its process ended before it had said anything."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """One rank of one run."""

    ending: Ending
    value: Any = None
    """What the program returned."""
    error: str = ""
    """Type and message of what it raised; for a process that died, its exit status or signal."""
