"""Simulates ranks that a test starts in a pool of multiprocessing: a call for each worker, with the worker's number.

These are the calls of one `map`, or as many `apply_async` as the pool has workers: in both cases tasks in the pool's
queue. The workers of such a pool live on from one call to the next, and may be older than the test, as torchmetrics'
are. Here each call has new ranks. Those of a test first repeat what the pool's workers did outside of tests.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import pool as pools
from typing import Any

from ddpsim.scenarios.test_suites.processes import may_make_group
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_Task = tuple[int, int, Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A task of multiprocessing.pool: the number of its result, its index there, function, arguments, named ones."""

_MAPPERS: Any = [vars(pools)[name] for name in ("mapstar", "starmapstar")]


def adapt_pools(ranks: RanksOfTest, replaced: ReplacedAttributes) -> None:
    """Let pools run ranks: no workers are started before there is a task that is no rank's."""
    kind: Any = pools.Pool
    start_workers = kind._repopulate_pool

    def prepare(pool: Any) -> None:
        if isinstance(pool, pools.ThreadPool):
            start_workers(pool)
        else:
            pool._taskqueue = _TaskQueue(ranks, pool, partial(start_workers, pool))

    def after_release(pool_of: Callable[[Any], Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def release_first(owner: Any, *arguments: Any, **named: Any) -> Any:
            queue = getattr(pool_of(owner), "_taskqueue", None)
            if isinstance(queue, _TaskQueue):
                queue.release()
            return original(owner, *arguments, **named)

        return release_first

    replaced.set_attribute(kind, "_repopulate_pool", prepare)
    replaced.replace_attribute(kind, "_map_async", _with_chunksize)
    replaced.replace_attribute(kind, "close", partial(after_release, lambda pool: pool))
    for name in ("ready", "wait"):
        replaced.replace_attribute(pools.ApplyResult, name, partial(after_release, lambda result: result._pool))


def _with_chunksize(original: Callable[..., Any]) -> Callable[..., Any]:
    def map_async(
        pool: Any, func: Any, iterable: Any, mapper: Any, chunksize: Any = None, *callbacks: Any, **named: Any
    ) -> Any:
        __tracebackhide__ = True
        items = list(iterable)
        if chunksize is None:  # multiprocessing divides by the workers that there are
            chunksize = -(-len(items) // (4 * pool._processes))
        return original(pool, func, items, mapper, chunksize, *callbacks, **named)

    return map_async


class _TaskQueue:
    """The queue of a pool's tasks. It holds those of ranks until there is one for each, or a result is asked for."""

    def __init__(self, ranks: RanksOfTest, pool: Any, start_workers: Callable[[], None]) -> None:
        self._ranks, self._pool, self._start_workers = ranks, pool, start_workers
        self._queue = pool._taskqueue
        self.get = self._queue.get
        self._held: list[_Task] = []
        self._before: list[Sequence[_Task]] = []
        """What the pool's workers would have done outside of tests."""

    def put(self, entry: Any) -> None:
        """Take a list of tasks and what takes their number (of an `imap`); None ends the queue."""
        __tracebackhide__ = True
        if entry is not None and entry[1] is None:
            tasks = [*self._held, *entry[0]]
            if self._are_ranks(tasks):
                self._held = tasks
                if len(tasks) == self._pool._processes:
                    self._held = []
                    self._run(tasks)
                return
            entry = tasks[len(self._held) :], None
        self.release()
        if entry is not None and not self._pool._pool:
            self._start_workers()
        self._queue.put(entry)

    def release(self) -> None:
        """Give the workers the tasks that were held: they are not those of all ranks."""
        held, self._held = self._held, []
        if held and self._pool._state != pools.TERMINATE:
            self._start_workers()
            self._queue.put((held, None))

    def _are_ranks(self, tasks: Sequence[_Task]) -> bool:
        """Return whether each task has its number among the arguments, and may make a process group."""
        count, in_test = self._pool._processes, self._ranks.attempt is not None
        if self._pool._pool or not 0 < len(tasks) <= count or not (in_test or tasks[0][2] in _MAPPERS):
            return False
        if self._before and len(tasks) == count:
            return True
        given = [_function_and_arguments(each) for each in tasks]
        numbered = (
            {key for key, value in arguments.items() if type(value) is int and value == number}
            for number, (_, arguments) in enumerate(given)
        )
        return bool(set.intersection(*numbered)) and may_make_group(given[0][0], *given[0][1].values())

    def _run(self, tasks: Sequence[_Task]) -> None:
        """Run tasks, one on each rank, after those of the pool outside of tests."""
        __tracebackhide__ = True
        outcomes: list[tuple[bool, Any]] = [(True, [None])] * len(tasks)
        if self._ranks.attempt is None:
            self._before.append(tasks)
        else:
            outcomes = _outcomes(self._ranks, self._pool, [*self._before, tasks])
        for (job, index, *_), outcome in zip(tasks, outcomes, strict=True):
            self._pool._cache[job]._set(index, outcome)


def _outcomes(ranks: RanksOfTest, pool: Any, lists: Sequence[Sequence[_Task]]) -> list[tuple[bool, Any]]:
    """Run lists of tasks, one of each on each rank. Return for each rank what the last has returned, after True, or the
    error that it or another one has raised."""
    __tracebackhide__ = True
    count = len(lists[-1])

    def run_rank(rank: int) -> tuple[Any]:
        __tracebackhide__ = True
        if pool._initializer is not None:
            pool._initializer(*pool._initargs)
        returned = None
        for tasks in pickle.loads(copied):
            _, _, function, arguments, named = tasks[rank]
            returned = function(*arguments, **named)
        return (returned,)

    try:
        copied = pickle.dumps(lists)
        returns = ranks.run(run_rank, count, function=_function_and_arguments(lists[-1][0])[0])
    except Exception as error:
        result = ranks.result_with(error)
        if result is None:
            return [(False, error)] * count
        found = enumerate(result.returns)
        return [(True, *each) if each else (False, result.errors.get(rank, error)) for rank, each in found]
    return [(True, *each) for each in returns]


def _function_and_arguments(task: _Task) -> tuple[Callable[..., Any], Mapping[Any, Any]]:
    """Return the function that a task calls, and its arguments by position or name; those in a tuple, if it is the only
    one, and those in a `partial`."""
    *_, function, arguments, named = task
    if function in _MAPPERS:
        [(function, arguments)] = arguments
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        arguments = arguments[0]
    while isinstance(function, partial):
        arguments, named = (*function.args, *arguments), {**function.keywords, **named}
        function = function.func
    return function, {**dict(enumerate(arguments)), **named}
