"""Sets of futures and threads with a fixed order. Python iterates over sets in the order of memory addresses.

In each iteration an executor takes a lock or waits for a thread, so the order has to be the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.locks import RankRLock

Key = Callable[[Any], tuple[int, ...]]


def when_made(future: Future[Any]) -> tuple[int, ...]:
    """Return the sort key of a future: futures of ranks by the thread that made them and when, then all others."""
    lock: Any = future._condition._lock  # type: ignore[attr-defined]
    return (0, *lock.made) if isinstance(lock, RankRLock) else (1,)


class OrderedSet(set[Any]):
    """A set whose iteration order is that of a sort key."""

    def __init__(self, members: Iterable[Any], key: Key) -> None:
        super().__init__(members)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=self._key))

    def __sub__(self, other: Any) -> Any:
        return OrderedSet(super().__sub__(other), self._key)

    def pop(self) -> Any:
        """Remove and return the first member."""
        for first in self:
            self.remove(first)
            return first
        return super().pop()  # raises KeyError


def ordered_set(steps: LockSteps, key: Key) -> Callable[..., set[Any]]:
    """Return the replacement of the name `set` in a module of `concurrent.futures`."""
    return lambda members=(): set(members) if steps.running() is None else OrderedSet(members, key)


def ordered_results(steps: LockSteps, original: Any) -> Callable[[set[Any], set[Any]], Any]:
    """Return the replacement of `DoneAndNotDoneFutures`: `wait` makes one of its sets without the name `set`."""

    def results(done: set[Any], not_done: set[Any]) -> Any:
        if steps.running() is not None:
            done, not_done = OrderedSet(done, when_made), OrderedSet(not_done, when_made)
        return original(done, not_done)

    return results


def acquiring(steps: LockSteps, original: Any) -> Callable[[Iterable[Any]], Any]:
    """Return the replacement of `_AcquireFutures`, which takes the locks of several futures one by one."""

    def acquire(futures: Iterable[Any]) -> Any:
        futures_in_turn = original(futures)
        if steps.running() is not None:
            futures_in_turn.futures = sorted(futures, key=when_made)
        return futures_in_turn

    return acquire
