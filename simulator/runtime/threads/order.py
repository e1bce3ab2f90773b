"""Sets of futures and of an executor's threads, which Python walks through in the order of their addresses.

Each step of such a walk takes a lock or waits for a thread, so on ranks it goes in an order that is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.locks import RankRLock

Key = Callable[[Any], tuple[int, ...]]


def when_made(future: Future[Any]) -> tuple[int, ...]:
    """Sorts futures that ranks made by who made them, and when; any others come after those."""
    lock: Any = future._condition._lock  # type: ignore[attr-defined]
    return (0, *lock.made) if isinstance(lock, RankRLock) else (1,)


class OrderedSet(set[Any]):
    """A set that is walked through in the order of a key."""

    def __init__(self, members: Iterable[Any], key: Key) -> None:
        super().__init__(members)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=self._key))

    def __sub__(self, other: Any) -> Any:
        return OrderedSet(super().__sub__(other), self._key)

    def pop(self) -> Any:
        """Take the first one out."""
        for first in self:
            self.remove(first)
            return first
        return super().pop()  # which says that there is none


def ordered_set(steps: LockSteps, key: Key) -> Callable[..., set[Any]]:
    """For `set`, in a module whose sets have members with such a key."""
    return lambda members=(): set(members) if steps.running() is None else OrderedSet(members, key)


def ordered_results(steps: LockSteps, original: Any) -> Callable[[set[Any], set[Any]], Any]:
    """For the pair of sets that `wait` returns, one of which it makes without the name `set`."""

    def results(done: set[Any], not_done: set[Any]) -> Any:
        if steps.running() is not None:
            done, not_done = OrderedSet(done, when_made), OrderedSet(not_done, when_made)
        return original(done, not_done)

    return results


def acquiring(steps: LockSteps, original: Any) -> Callable[[Iterable[Any]], Any]:
    """For what takes the locks of several futures, one after another."""

    def acquire(futures: Iterable[Any]) -> Any:
        futures_in_turn = original(futures)
        if steps.running() is not None:
            futures_in_turn.futures = sorted(futures, key=when_made)
        return futures_in_turn

    return acquire
