"""The oldest torch that this works with, and one line where there is an older one. It imports no torch."""

from __future__ import annotations

import re
import sys

OLDEST = (2, 11)

TESTED = (("3.11", "2.13"), ("3.13", "2.15"), ("3.11", "2.11"), ("3.10", "2.14"))
"""Python and torch that ddpsim was tested with, as docs/versions.md says."""


def complaint() -> str:
    """What is wrong with the torch that has been imported, or "". What it lacks shows as an ImportError somewhere."""
    found = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return f"torch is {found}, expected {oldest} or newer: pip install 'torch>={oldest}'"
