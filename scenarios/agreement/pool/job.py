"""What a pool is asked to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STILL_SECONDS = 0.5
"""Long enough: ranks that can go on do so within a millisecond, and one that is only slow does not sleep."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of a function on every rank of a new default group on gloo.

    Function and arguments travel pickled: a function is found again by its module and name, so it must not be one of
    the script that was started (`__main__`).
    """

    function: Callable[..., object]
    """Called as `function(rank, *args)`."""
    world_size: int
    args: tuple[Any, ...] = ()
    still_seconds: float = STILL_SECONDS
    """The job hangs once none of its unfinished ranks has moved for so long."""
