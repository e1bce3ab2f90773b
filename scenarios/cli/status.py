"""The exit status of `ddpsim`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Status(IntEnum):
    """What a command ends with."""

    AS_EXPECTED = 0
    """Also of a scenario that is expected to deadlock, and does."""
    OTHERWISE = 1
    """Another verdict or finding than expected, or a file of scenarios that cannot be loaded."""
    USAGE_ERROR = 2
    """One line on stderr says what was found, what was expected and what to do."""
    UNKNOWN = 3
    """A budget ran out, or real processes could not be asked."""
    INTERRUPTED = 130
    """Ctrl-C, as typer and shells say it."""


def worst(statuses: Iterable[Status]) -> Status:
    """Of several runs: 1 if one of them surprised, else 3 if one came to nothing, else 0."""
    found = set(statuses)
    return next((status for status in (Status.OTHERWISE, Status.UNKNOWN) if status in found), Status.AS_EXPECTED)
