"""Ranks for these tests: generators that yield where the baton may change hands, on one thread or on one each."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ddpsim.simulator.runtime.isolation import Isolation
from tests.kit.rank_threads import start


@contextmanager
def installed(world_size):
    isolation = Isolation(world_size)
    isolation.install()
    try:
        yield isolation
    finally:
        isolation.uninstall()


def interleave(program, world_size, *, ranks=None, own_threads=False):
    """Run `program(rank)` for `ranks` (default: all) in turn, a switch at each yield; return what each returned."""
    ranks = list(range(world_size) if ranks is None else ranks)
    returned = {}
    # One worker each: a rank is on one thread, and only one thread runs, as each step is waited for.
    workers = {rank: ThreadPoolExecutor(1) for rank in ranks} if own_threads else {}
    try:
        with installed(world_size) as isolation:
            holder = None
            programs = {rank: program(rank) for rank in ranks}
            while programs:
                for rank, steps in list(programs.items()):
                    isolation.switch_rank(holder, rank)
                    holder = rank
                    try:
                        workers[rank].submit(_step, steps).result() if own_threads else next(steps)
                    except (StopIteration, _Returned) as stop:
                        returned[rank] = stop.args[0] if stop.args else None
                        del programs[rank]
            isolation.switch_rank(holder, None)
    finally:
        for worker in workers.values():
            worker.shutdown()
    return [returned[rank] for rank in ranks]


class _Returned(Exception):
    """A StopIteration cannot pass through a future."""


def _step(steps):
    try:
        next(steps)
    except StopIteration as stop:
        raise _Returned(stop.value) from None


def in_thread(function):
    """Call `function` in a new thread and return its result."""
    results = []
    start(lambda: results.append(function())).join()
    return results[0]


@pytest.fixture(scope="session", name="installed")
def _installed() -> Callable:
    return installed


@pytest.fixture(scope="session", name="interleave")
def _interleave() -> Callable:
    return interleave


@pytest.fixture(scope="session", name="in_thread")
def _in_thread() -> Callable:
    return in_thread


@pytest.fixture
def isolation() -> Iterator[Isolation]:
    """An installed isolation of three ranks."""
    with installed(3) as isolation:
        yield isolation
