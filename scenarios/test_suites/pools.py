"""Simulates ranks that a test starts in a pool of multiprocessing: a call for each worker, with the worker's number.

These are the calls of one `map`, or as many `apply_async` as the pool has workers. The workers of such a pool live on
from one call to the next, and may be older than the test, as torchmetrics' are. Here each call has new ranks. Those of
a test first repeat what the pool's workers did outside of tests.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import pool as pools
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ddpsim.scenarios.test_suites.processes import may_make_group
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_MAPS_STARS: Any = vars(pools)["starmapstar"]


class _Call(NamedTuple):
    """The call of a function in one worker."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    named: Mapping[str, Any]

    @classmethod
    def of(cls, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> "_Call":
        """Return the call, with the arguments that are in a `partial`."""
        while isinstance(function, partial):
            arguments, named = (*function.args, *arguments), {**function.keywords, **named}
            function = function.func
        return cls(function, arguments, named)

    def given(self) -> Mapping[Any, Any]:
        """Return the arguments by position or name; those in a tuple, if it is the only one."""
        is_tuple = len(self.arguments) == 1 and isinstance(self.arguments[0], tuple)
        return {**dict(enumerate(self.arguments[0] if is_tuple else self.arguments)), **self.named}

    def arguments_with_number(self, number: int) -> set[Any]:
        """Return which arguments are the number."""
        return {key for key, value in self.given().items() if type(value) is int and value == number}


class _AppliedCall(pools.ApplyResult):  # type: ignore[type-arg]
    """The result of an `apply_async` that waits for those of the other ranks, or for the test to ask for it."""

    def __init__(self, use_workers: Callable[[Any], None], call: _Call, pool: Any, callbacks: Sequence[Any]) -> None:
        super().__init__(pool, *callbacks)
        self.call, self._use_workers = call, partial(use_workers, pool)

    def set(self, is_returned: bool, value: Any) -> None:
        """Set what the call has returned or raised, and call back."""
        self._set(0, (is_returned, value))  # type: ignore[attr-defined]

    def ready(self) -> bool:
        """Return whether the call has ended."""
        self._use_workers()
        return super().ready()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end of the call."""
        self._use_workers()
        super().wait(timeout)


class PoolsOfTest:
    """The pools of multiprocessing in which tests may run ranks."""

    def __init__(self, ranks: RanksOfTest, replaced: ReplacedAttributes) -> None:
        self._ranks = ranks
        self._done: WeakKeyDictionary[Any, list[Sequence[_Call]]] = WeakKeyDictionary()
        """By pool, what its workers would have done outside of tests."""
        self._applied: WeakKeyDictionary[Any, list[_AppliedCall]] = WeakKeyDictionary()
        kind: Any = pools.Pool
        self._start_workers = kind._repopulate_pool
        self._apply = kind.apply_async
        replaced.set_attribute(kind, "_repopulate_pool", lambda pool: self._start_workers_of_threads(pool))
        for name in ("imap", "imap_unordered", "_map_async"):
            replaced.replace_attribute(kind, name, partial(self._task_replacement, self._use_workers))
        replaced.replace_attribute(kind, "close", partial(self._task_replacement, self._run_applied))
        replaced.replace_attribute(kind, "_map_async", self._map_replacement)
        replaced.replace_attribute(kind, "apply_async", self._apply_replacement)

    def _start_workers_of_threads(self, pool: Any) -> None:
        """Start no processes yet: a pool may have no other calls than those of ranks."""
        if isinstance(pool, pools.ThreadPool):
            self._start_workers(pool)

    def _use_workers(self, pool: Any) -> None:
        if not pool._pool:
            self._start_workers(pool)
        self._run_applied(pool)

    def _run_applied(self, pool: Any) -> None:
        """Run in the pool's workers what was applied: it is not that of all ranks."""
        for each in self._applied.pop(pool, ()):
            self._use_workers(pool)
            self._apply(pool, *each.call, partial(each.set, True), partial(each.set, False))

    def _task_replacement(self, prepare: Callable[[Any], None], original: Callable[..., Any]) -> Callable[..., Any]:
        def start_task(pool: Any, *arguments: Any, **named: Any) -> Any:
            prepare(pool)
            return original(pool, *arguments, **named)

        return start_task

    def _apply_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_async(
            pool: Any, func: Any, args: Any = (), kwds: Any = None, callback: Any = None, error_callback: Any = None
        ) -> Any:
            __tracebackhide__ = True
            call, applied = _Call.of(func, tuple(args), kwds or {}), self._applied.get(pool, [])
            calls = [*(each.call for each in applied), call]
            if self._ranks.attempt is None or not self._are_ranks(pool, calls):
                self._use_workers(pool)
                return original(pool, func, args, kwds or {}, callback, error_callback)
            pool._check_running()
            applied.append(_AppliedCall(self._run_applied, call, pool, (callback, error_callback)))
            self._applied[pool] = applied
            if len(calls) == pool._processes:
                del self._applied[pool]
                for each, outcome in zip(applied, self._run(pool, calls), strict=True):
                    each.set(*outcome)
            return applied[-1]

        return apply_async

    def _map_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def map_async(
            pool: Any, function: Any, iterable: Any, mapper: Any, chunksize: Any = None, *callbacks: Any, **named: Any
        ) -> Any:
            __tracebackhide__ = True
            given = list(iterable)
            calls = [_Call.of(function, tuple(each) if mapper is _MAPS_STARS else (each,), {}) for each in given]
            if len(calls) != pool._processes or not (self._are_ranks(pool, calls) or pool in self._done):
                return original(pool, function, given, mapper, chunksize, *callbacks, **named)
            result: Any = pools.MapResult(pool, len(given), len(given), *(callbacks or (None, None)))
            outcomes = self._run(pool, calls)
            failed = next((each for each in outcomes if not each[0]), None)
            result._set(0, failed or (True, [value for _, value in outcomes]))
            return result

        return map_async

    def _are_ranks(self, pool: Any, calls: Sequence[_Call]) -> bool:
        """Return whether each call has its number among the arguments, and may make a process group."""
        if pool._pool or not calls:
            return False
        numbered = [each.arguments_with_number(number) for number, each in enumerate(calls)]
        return bool(set.intersection(*numbered)) and may_make_group(calls[0].function, *calls[0].given().values())

    def _run(self, pool: Any, calls: Sequence[_Call]) -> list[tuple[bool, Any]]:
        """Run calls, one on each rank, after those of the pool outside of tests. Return for each what it has returned,
        after True, or the error that it or another one has raised."""
        __tracebackhide__ = True
        before = self._done.setdefault(pool, [])
        if self._ranks.attempt is None:
            before.append(calls)
            return [(True, None)] * pool._processes
        copied = pickle.dumps([*before, calls])

        def run_rank(rank: int) -> tuple[Any]:
            __tracebackhide__ = True
            if pool._initializer is not None:
                pool._initializer(*pool._initargs)
            returned = None
            for each in pickle.loads(copied):
                function, arguments, named = each[rank]
                returned = function(*arguments, **named)
            return (returned,)

        try:
            returns = self._ranks.run(run_rank, pool._processes, function=calls[0].function)
        except Exception as error:
            returns, errors = (None,) * pool._processes, {}
            for result in self._ranks.attempt.results[-1:]:
                if any(error is each for each in result.errors.values()):
                    returns, errors = result.returns, dict(result.errors)
            return [(True, *each) if each else (False, errors.get(rank, error)) for rank, each in enumerate(returns)]
        return [(True, *each) for each in returns]
