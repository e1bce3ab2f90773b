"""The exit status of `ddpsim`."""

from collections.abc import Iterable
from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit status of a command."""

    AS_EXPECTED = 0
    """The outcome is as expected, also if a scenario deadlocks as expected."""
    OTHERWISE = 1
    """Another verdict or finding than expected, or a file of scenarios that cannot be loaded."""
    USAGE_ERROR = 2
    """The command line is wrong. One line on stderr says what was found, what was expected and what to do."""
    UNKNOWN = 3
    """The outcome is unknown: a budget ran out, or real processes could not be checked."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C. Typer and shells use the same number."""
    TERMINATED = 143
    """SIGTERM ended the command. Shells use the same number."""


def worst_status(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """Return the exit status for several runs: 130 if one was interrupted, else 1 if any is not as expected, else 3 if
    any is unknown, else 0."""
    order = [ExitStatus.AS_EXPECTED, ExitStatus.UNKNOWN, ExitStatus.OTHERWISE, ExitStatus.INTERRUPTED]
    return max(statuses, key=order.index, default=ExitStatus.AS_EXPECTED)
