"""Python's counters and executor flags that are global to a process: each simulated rank gets its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.locks import RankLock


def counter(steps: LockSteps, original: Callable[[], int], *, start: int) -> Callable[[], int]:
    """Return a counter for the names of threads and executors that begins anew in each rank of each simulation."""
    counters: dict[int, Callable[[], int]] = {}

    def number() -> int:
        me = steps.running()
        return original() if me is None else counters.setdefault(me.rank, count(start).__next__)()

    return number


class ShutdownLock:
    """Replaces the lock that all executors of a process share by one lock for each rank."""

    def __init__(self, steps: LockSteps, original: Any) -> None:
        self._steps = steps
        self._original = original
        self._locks: dict[int, RankLock] = {}

    def __enter__(self) -> bool:
        return bool(self._own().__enter__())

    def __exit__(self, *exception: object) -> None:
        self._own().__exit__(*exception)

    def _own(self) -> Any:
        me = self._steps.running()
        if me is None:
            return self._original
        if me.rank not in self._locks:
            self._locks[me.rank] = RankLock(self._steps, me, is_inner=True)
        return self._locks[me.rank]


class IsShutDown:
    """Replaces the flag that tells all executor threads of a process to end: true in a rank that is ending."""

    def __init__(self, steps: LockSteps, original: bool) -> None:
        self._steps = steps
        self._original = original

    def __bool__(self) -> bool:
        me = self._steps.running()
        return self._original if me is None else me.of.is_ending
