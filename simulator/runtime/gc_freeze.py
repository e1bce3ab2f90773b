"""Makes Python's garbage collector run less often during a run.

By default it would scan all objects of the process again and again while 1,024 ranks build their models: a quarter of
the run. So objects that exist at the start are frozen (`gc.freeze`), and the threshold of new objects that triggers a
collection grows with the number of ranks. Reference cycles that die young are still collected, older ones afterwards.

Frozen objects become old objects afterwards, and Python's counters, which decide when to scan old objects, do not count
them. Cycles that outlive their run, such as results, would pile up over thousands of runs. So a full collection runs
whenever a given number of ranks have run; it takes as long as some dozen small runs. An exploration freezes objects
once, before its first execution: what a run leaves is young then, and is collected as usual.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS_PER_RANK = 10_000
"""New objects for each rank before a garbage collection. A rank that trains a small DDP model makes fewer."""

_YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD = 20, 1_000
"""Thresholds with which collections of the oldest generation almost never run."""

_RANKS_PER_OLD = 1_000
"""A full collection runs after this many ranks. Trainings of four ranks leave some 100 MB until then."""

_LITTLE_GARBAGE = 10_000
"""If a full collection frees fewer objects than this, the next full collection comes later."""


class _FullCollections:
    """Counts the ranks since the last full collection, and decides when the next one is due."""

    def __init__(self) -> None:
        self._ranks = 0
        self._due = _RANKS_PER_OLD

    def collect_if_due(self, ranks: int) -> None:
        """Run a full collection if one is due. Add the ranks of the starting run to the count that decides the next."""
        if self._ranks >= self._due:
            self._ranks = 0
            self._due = 2 * self._due if gc.collect() < _LITTLE_GARBAGE else _RANKS_PER_OLD
        self._ranks += ranks


class _FrozenObjects:
    """Freezes existing objects (`gc.freeze`) once and remembers this: `gc.get_freeze_count` takes 10 ms or more."""

    def __init__(self) -> None:
        self._is_done = False
        """True if objects are frozen: by a run, until its end, or by the process itself, for good."""

    def freeze_once(self) -> bool:
        """Freeze existing objects unless they are frozen. True if the caller has to call `unfreeze` later."""
        if self._is_done:
            return False
        self._is_done = True
        if gc.get_freeze_count():
            return False
        gc.freeze()
        return True

    def unfreeze(self) -> None:
        """Let Python's garbage collector scan the frozen objects again."""
        gc.unfreeze()
        self._is_done = False


_OLD_COLLECTIONS = _FullCollections()
_FROZEN_OBJECTS = _FrozenObjects()
# They belong to the whole process, as the collector does.


@contextmanager
def freeze_existing_objects(world_size: int) -> Iterator[None]:
    """A context in which garbage collections ignore all objects that existed at its start.

    `world_size` is the number of ranks of the run. A caller that wraps several runs passes 0: each counts its own.
    """
    if gc.isenabled():
        _OLD_COLLECTIONS.collect_if_due(world_size)
    is_ours = _FROZEN_OBJECTS.freeze_once()
    try:
        yield
    finally:
        if is_ours:
            _FROZEN_OBJECTS.unfreeze()


@contextmanager
def fewer_collections(world_size: int) -> Iterator[None]:
    """A context in which the garbage collector runs less often and ignores older objects; then it is as before."""
    before, was_enabled = gc.get_threshold(), gc.isenabled()
    with freeze_existing_objects(world_size):
        if was_enabled and before[0]:
            gc.set_threshold(before[0] + _YOUNG_OBJECTS_PER_RANK * world_size, _YOUNG_PER_MIDDLE, _MIDDLE_PER_OLD)
        try:
            yield
        finally:
            gc.set_threshold(*before)
            if was_enabled != gc.isenabled():  # a rank may have enabled or disabled it
                (gc.enable if was_enabled else gc.disable)()
