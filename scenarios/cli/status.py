"""The exit status of `ddpsim`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit status of a command."""

    AS_EXPECTED = 0
    """Also for a scenario that deadlocks as expected."""
    OTHERWISE = 1
    """Another verdict or finding than expected, or a file of scenarios that cannot be loaded."""
    USAGE_ERROR = 2
    """A wrong command; one line on stderr says what was found, what was expected and what to do."""
    UNKNOWN = 3
    """A budget ran out, or real processes could not be checked."""
    INTERRUPTED = 130
    """Ctrl-C; the number that typer and shells use."""


def worst_status(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """Return the status of several runs: 1 if one is not as expected, else 3 if one is unknown, else 0."""
    found = set(statuses)
    return next(
        (status for status in (ExitStatus.OTHERWISE, ExitStatus.UNKNOWN) if status in found), ExitStatus.AS_EXPECTED
    )
