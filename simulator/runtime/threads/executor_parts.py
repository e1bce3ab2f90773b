"""Parts of Python's executors and futures that each simulated rank gets for itself, or in a fixed order.

Counters and flags that Python has once per process begin anew in each rank. Sets of futures and threads are ordered:
Python iterates over sets in the order of memory addresses, and in each iteration an executor takes a lock or waits for
a thread, so the order has to be the same in every run.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.locks import RankLock, RankRLock

Key = Callable[[Any], tuple[int, ...]]


def future_sort_key(future: Future[Any]) -> tuple[int, ...]:
    """Return the sort key of a future: those that ranks made come first, by the making thread and the number in it."""
    lock: Any = future._condition._lock  # type: ignore[attr-defined]
    return (0, *lock.made) if isinstance(lock, RankRLock) else (1,)


class OrderedSet(set[Any]):
    """A set that is iterated over in the order of a sort key, so the order is the same in every run."""

    def __init__(self, members: Iterable[Any], key: Key) -> None:
        super().__init__(members)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=self._key))

    def __sub__(self, other: Any) -> Any:
        return OrderedSet(super().__sub__(other), self._key)

    def pop(self) -> Any:
        """Remove and return the first member in sort order."""
        for first in self:
            self.remove(first)
            return first
        return super().pop()  # raises KeyError


def wrap_set(steps: LockSteps, key: Key) -> Callable[..., set[Any]]:
    """Return the replacement of the name `set` in a module of `concurrent.futures`: it makes ordered sets."""
    return lambda members=(): set(members) if steps.calling_rank_thread() is None else OrderedSet(members, key)


def wrap_wait_results(steps: LockSteps, original: Any) -> Callable[[set[Any], set[Any]], Any]:
    """Return the replacement of `DoneAndNotDoneFutures`, so that the sets of `concurrent.futures.wait` are ordered."""

    def results(done: set[Any], not_done: set[Any]) -> Any:
        if steps.calling_rank_thread() is not None:
            done, not_done = OrderedSet(done, future_sort_key), OrderedSet(not_done, future_sort_key)
        return original(done, not_done)

    return results


def wrap_acquire_futures(steps: LockSteps, original: Any) -> Callable[[Iterable[Any]], Any]:
    """Return the replacement of `_AcquireFutures`, which takes the locks of several futures one by one."""

    def acquire(futures: Iterable[Any]) -> Any:
        futures_in_turn = original(futures)
        if steps.calling_rank_thread() is not None:
            futures_in_turn.futures = sorted(futures, key=future_sort_key)
        return futures_in_turn

    return acquire


def counter_for_ranks(steps: LockSteps, original: Callable[[], int], *, start: int) -> Callable[[], int]:
    """Return a counter for the names of threads and executors that begins anew in each rank of each simulation."""
    counters: dict[int, Callable[[], int]] = {}

    def number() -> int:
        me = steps.calling_rank_thread()
        return original() if me is None else counters.setdefault(me.rank, count(start).__next__)()

    return number


class ShutdownLockForRanks:
    """Replaces the lock that all executors of a process share by one lock for each rank."""

    def __init__(self, steps: LockSteps, original: Any) -> None:
        self._steps = steps
        self._original = original
        self._locks: dict[int, RankLock] = {}

    def __enter__(self) -> bool:
        return bool(self._lock_of_rank().__enter__())

    def __exit__(self, *exception: object) -> None:
        self._lock_of_rank().__exit__(*exception)

    def _lock_of_rank(self) -> Any:
        me = self._steps.calling_rank_thread()
        if me is None:
            return self._original
        if me.rank not in self._locks:
            self._locks[me.rank] = RankLock(self._steps, me, is_inner=True)
        return self._locks[me.rank]


class ShutdownFlagForRanks:
    """Replaces the flag that ends all executor threads of a process. In a rank, it is true once the rank is ending."""

    def __init__(self, steps: LockSteps, original: bool) -> None:
        self._steps = steps
        self._original = original

    def __bool__(self) -> bool:
        me = self._steps.calling_rank_thread()
        return self._original if me is None else me.of.is_ending
