"""Switches garbage collection off while many modules are imported, or many values are read.

The created objects stay alive, so a collection would find nothing. Collections take a tenth of the time of torch's
import, a third of what ddpsim imports in addition, and most of the time in which millions of values are read.
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
    """Import a module and return its attribute `name`. If torch is too old, the ImportError names its version."""
    try:
        with pause_garbage_collection():
            return getattr(importlib.import_module(module), name)
    except ImportError:
        if line := torch_too_old_message():
            raise ImportError(line) from None
        raise
