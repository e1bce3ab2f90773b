"""The error of reports that a user can correct."""

from __future__ import annotations


class ReportError(ValueError):
    """A file is no report, or a folder cannot hold one. The message says what was found and what to do.

    It is not the simulator's UsageError: rendering a saved report does not use the simulator.
    """
