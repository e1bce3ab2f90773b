"""Imports of many modules at once, torch's above all, and other work that makes much and leaves no garbage.

What an import makes stays, so the collector finds nothing in it, and looks through it again and again: a tenth of
torch's import, a third of what comes on top of it here, and most of the time in which millions of values are read.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Let Python's collector rest inside."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
