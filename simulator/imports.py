"""Switches garbage collection off during imports of many modules, and while many values are read.

The created objects stay alive, so each collection finds nothing. It costs a tenth of torch's import, a third of what
ddpsim imports on top, and most of the time in which millions of values are read.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddpsim.simulator.torch_version import torch_too_old_message


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collection in this block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_public_name(module: str, name: str) -> Any:
    """Import a module and return its attribute `name`. Raises ImportError that names the version of a torch too old."""
    try:
        with pause_garbage_collection():
            return getattr(importlib.import_module(module), name)
    except ImportError:
        if line := torch_too_old_message():
            raise ImportError(line) from None
        raise
