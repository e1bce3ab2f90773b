"""What goes wrong with reports through no fault of ours."""

from __future__ import annotations


class ReportError(ValueError):
    """A file that is no report, or a folder that takes none. The message says what was found, and what to do.

    No UsageError of the simulator's: who renders a saved report has nothing to do with one that runs.
    """
