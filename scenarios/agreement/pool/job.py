"""What a pool is asked to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
    still_seconds: float = field(kw_only=True)
    """The job hangs if no rank moves for so long. Half a second will do: ranks that can go on do so within a
    millisecond, and one that is only slow does not count as still.
    """
