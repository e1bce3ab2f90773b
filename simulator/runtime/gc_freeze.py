"""Python's garbage collector, while an execution runs.

By default it looks through all objects of the process again and again while 1,024 ranks build their models: a quarter
of the run. So what exists at the start is set aside (`gc.freeze`), and how many new objects lead to a collection grows
with the number of ranks, each of which makes as many as a process of its own would. Reference cycles that die young
still go; those that grow old wait for the end of the run.

What was set aside is old afterwards, and Python, which counts what grows old to tell when to look there, did not see
it. So cycles that outlive their run, a result for instance, would pile up over thousands of runs; they are looked for
whenever so many ranks have run. That takes as long as some dozen small runs, since everything is looked through. An
exploration sets aside what exists before its first execution, and nothing more until its end: what an execution leaves
is young then, and goes as it would without us.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS_PER_RANK = 10_000
"""More than a small model in DDP is made of: a rank that builds one and trains it leads to no collection."""

_YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD = 20, 1_000
"""An old collection comes hardly ever."""

_RANKS_PER_OLD = 1_000
"""Trainings of four ranks leave some 100 MB until then, and the collection takes as long as a few of them."""

_LITTLE_GARBAGE = 10_000
"""Objects. Programs that leave no more than this in so many ranks are not worth looking again as soon."""


class _OldCollections:
    """How many ranks have run since the last old collection, and after how many the next one is due."""

    def __init__(self) -> None:
        self._ranks = 0
        self._due = _RANKS_PER_OLD

    def run(self, ranks: int) -> None:
        """Collect if that is due after the ranks of earlier runs, and count those of the one that begins."""
        if self._ranks >= self._due:
            self._ranks = 0
            self._due = 2 * self._due if gc.collect() < _LITTLE_GARBAGE else _RANKS_PER_OLD
        self._ranks += ranks


class _FrozenObjects:
    """Freezes what exists, once, and knows if that was done: Python, asked, counts the frozen, in 10 ms or more."""

    def __init__(self) -> None:
        self._is_done = False
        """By a run, which ends; or by the process, for reasons of its own, and then for good."""

    def begin(self) -> bool:
        """Freeze, unless that was done; whether it is the caller's to undo."""
        if self._is_done:
            return False
        self._is_done = True
        if gc.get_freeze_count():
            return False
        gc.freeze()
        return True

    def end(self) -> None:
        """Undo it."""
        gc.unfreeze()
        self._is_done = False


_OLD_COLLECTIONS = _OldCollections()
_FROZEN_OBJECTS = _FrozenObjects()
# As the collector does, they belong to the whole process.


@contextmanager
def freeze_existing_objects(world_size: int) -> Iterator[None]:
    """Let the collector look inside at nothing that exists now. A run of so many ranks does this once.

    What is around several runs, which count themselves, has no ranks.
    """
    if gc.isenabled():
        _OLD_COLLECTIONS.run(world_size)
    is_ours = _FROZEN_OBJECTS.begin()
    try:
        yield
    finally:
        if is_ours:
            _FROZEN_OBJECTS.end()


@contextmanager
def fewer_collections(world_size: int) -> Iterator[None]:
    """Collect less often inside, and nothing that exists now; the collector is as it was afterwards."""
    before, was_enabled = gc.get_threshold(), gc.isenabled()
    with freeze_existing_objects(world_size):
        if was_enabled and before[0]:
            gc.set_threshold(before[0] + _YOUNG_OBJECTS_PER_RANK * world_size, _YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD)
        try:
            yield
        finally:
            gc.set_threshold(*before)
            if was_enabled != gc.isenabled():  # a rank may have switched it
                (gc.enable if was_enabled else gc.disable)()
