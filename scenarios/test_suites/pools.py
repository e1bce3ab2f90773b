"""Simulates ranks that a test starts in a pool of multiprocessing: a call for each worker, with the worker's number.

The workers of such a pool live on from one call to the next, and may be older than the test, as torchmetrics' are.
Here each call has new ranks. Those of a test first repeat what the pool's workers did outside of tests.
"""

import pickle
from collections.abc import Callable, Sequence
from multiprocessing import pool as pools
from typing import Any
from weakref import WeakKeyDictionary

from ddpsim.scenarios.test_suites.processes import may_make_group
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_MAPS_STARS: Any = vars(pools)["starmapstar"]

_Calls = tuple[Callable[..., Any], Sequence[Sequence[Any]]]


class PoolsOfTest:
    """The pools of multiprocessing in which tests may run ranks."""

    def __init__(self, ranks: RanksOfTest, replaced: ReplacedAttributes) -> None:
        self._ranks = ranks
        self._done: WeakKeyDictionary[Any, list[_Calls]] = WeakKeyDictionary()
        """By pool, what its workers would have done outside of tests."""
        kind: Any = pools.Pool
        self._start_workers = kind._repopulate_pool
        replaced.set_attribute(kind, "_repopulate_pool", lambda pool: self._start_workers_of_threads(pool))
        for name in ("apply_async", "imap", "imap_unordered", "_map_async"):
            replaced.replace_attribute(kind, name, self._task_replacement)
        replaced.replace_attribute(kind, "_map_async", self._map_replacement)

    def _start_workers_of_threads(self, pool: Any) -> None:
        """Start no processes yet: a pool may have no other calls than those of ranks."""
        if isinstance(pool, pools.ThreadPool):
            self._start_workers(pool)

    def _task_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start_task(pool: Any, *arguments: Any, **named: Any) -> Any:
            if not pool._pool:
                self._start_workers(pool)
            return original(pool, *arguments, **named)

        return start_task

    def _map_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def map_async(
            pool: Any, function: Any, iterable: Any, mapper: Any, chunksize: Any = None, *callbacks: Any, **named: Any
        ) -> Any:
            __tracebackhide__ = True
            given = list(iterable)
            arguments = [tuple(each) if mapper is _MAPS_STARS else (each,) for each in given]
            if not self._are_ranks(pool, function, arguments):
                return original(pool, function, given, mapper, chunksize, *callbacks, **named)
            result: Any = pools.MapResult(pool, len(given), len(given), *(callbacks or (None, None)))
            try:
                result._set(0, (True, self._run(pool, (function, arguments))))
            except Exception as error:
                result._set(0, (False, error))
            return result

        return map_async

    def _are_ranks(self, pool: Any, function: Any, arguments: Sequence[Sequence[Any]]) -> bool:
        if pool._pool or len(arguments) != pool._processes:
            return False
        are_numbers = all(each[:1] == (number,) for number, each in enumerate(arguments))
        return (are_numbers and may_make_group(function)) or pool in self._done

    def _run(self, pool: Any, calls: _Calls) -> list[Any]:
        """Run calls, one on each rank, after those of the pool outside of tests."""
        __tracebackhide__ = True
        before = self._done.setdefault(pool, [])
        if self._ranks.attempt is None:
            before.append(calls)
            return [None] * pool._processes
        copied = pickle.dumps([*before, calls])

        def run_rank(rank: int) -> Any:
            __tracebackhide__ = True
            if pool._initializer is not None:
                pool._initializer(*pool._initargs)
            returned = None
            for function, arguments in pickle.loads(copied):
                returned = function(*arguments[rank])
            return returned

        return list(self._ranks.run(run_rank, pool._processes, function=calls[0]))
