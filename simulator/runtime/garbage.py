"""Python's garbage collector, while an execution runs.

By default it looks through all objects of the process again and again while 1,024 ranks build their models: a quarter
of the run. So what exists at the start is set aside (`gc.freeze`), and the young generations are collected less often.
Reference cycles that die young still go; those that grow old wait for the end of the run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (50_000, 20, 1_000)
"""A young collection every 50,000 new objects, a middle one every million; an old one hardly ever."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect less often inside; the collector is as it was afterwards."""
    before = gc.get_threshold()
    is_frozen_by_us = gc.get_freeze_count() == 0  # else the process froze objects for reasons of its own
    if is_frozen_by_us:
        gc.freeze()
    if gc.isenabled() and before[0]:
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if is_frozen_by_us:
            gc.unfreeze()
