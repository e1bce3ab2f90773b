"""The oldest torch that ddpsim supports, and the message for an older one. This module does not import torch."""

from __future__ import annotations

import re
import sys

OLDEST = (2, 11)

TESTED = (("3.11", "2.13"), ("3.13", "2.15"), ("3.11", "2.11"), ("3.10", "2.14"))
"""The versions of Python and torch that ddpsim was tested with, as listed in docs/versions.md."""


def torch_too_old_message() -> str:
    """Return a message if the imported torch is too old, else "".

    Call it also on an ImportError, by which an old torch may first show.
    """
    found = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return f"torch is {found}, expected {oldest} or newer: pip install 'torch>={oldest}'"
