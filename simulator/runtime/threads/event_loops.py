"""Event loops of asyncio inside ranks, which wait in virtual time; and external threads, which do not.

A loop waits in `select`, for a ready file or until its next timer. That would take real time and keep the baton, so
that no other thread or rank could wake the loop. Instead, a loop that a rank makes waits for a simulated
`threading.Event`. Other threads of the rank set it (`call_soon_threadsafe`). So `asyncio.sleep` takes virtual time, and
a loop that no thread will wake is a deadlock.

If the loop also watches other files, such as the pipes of a subprocess, it polls: it waits for them in real time for
0.01 s, then lets 0.01 s of virtual time pass, and repeats.

Not covered: loops that are not an `asyncio.SelectorEventLoop` (uvloop), and loops made before the run.

External threads are those that ranks start and that are not simulated, as they work with processes or in real time.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps

_POLL_SECONDS = 0.01

_LOKY = ("loky", "joblib.externals.loky")
OUTSIDE = ("multiprocessing", "concurrent.futures.process", "torch.utils.data", "tqdm", *_LOKY)
"""The modules whose threads are external: they work with other processes or in real time, and are not simulated."""

_MODULES_THAT_WAKE_NO_RANK = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "torch.utils.data",
    "tqdm",
    *[f"{package}.backend.queues" for package in _LOKY],
)
"""Modules of `OUTSIDE` whose threads never release a lock that a rank waits for."""


def wrap_loop_constructor(steps: LockSteps, original: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `BaseSelectorEventLoop.__init__`."""

    @wraps(original)
    def make(loop: Any, *arguments: Any, **options: Any) -> None:
        original(loop, *arguments, **options)
        if steps.calling_rank_thread() is not None:
            steps.report_use("asyncio")
            _wait_in_virtual_time(loop)
            _say_nothing_after_the_end(loop, steps)

    return make


def is_loop_of_rank(loop: Any) -> bool:
    """True if a rank made this event loop, so that the loop waits in virtual time."""
    return isinstance(getattr(loop, "_selector", None), _VirtualTimeSelector)


def _wait_in_virtual_time(loop: Any) -> None:
    woken = threading.Event()
    wake_by_file = loop._write_to_self

    def write_to_self() -> None:
        wake_by_file()
        woken.set()

    loop._write_to_self = write_to_self
    loop._selector = _VirtualTimeSelector(loop._selector, woken)


def _say_nothing_after_the_end(loop: Any, steps: LockSteps) -> None:
    """Let a loop report no tasks that the end of the run has left behind."""
    report = loop.call_exception_handler

    def call_exception_handler(context: dict[str, Any]) -> None:
        if steps.calling_rank_thread() is not None and not steps.host.is_stopping:
            report(context)

    loop.call_exception_handler = call_exception_handler


class _VirtualTimeSelector:
    """The selector of a rank's event loop: it waits in virtual time."""

    def __init__(self, selector: Any, woken: threading.Event) -> None:
        self._selector = selector
        self._woken = woken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> Any:
        """Wait until a file is ready or the time-out passes, and return the ready files. The list may be empty."""
        ready = self._selector.select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._woken.clear()
            return ready
        if len(self._selector.get_map()) > 1:  # not its own alone
            timeout = _POLL_SECONDS if timeout is None else min(timeout, _POLL_SECONDS)
            if ready := self._selector.select(timeout):
                return ready
        self._woken.wait(timeout)
        self._woken.clear()
        return self._selector.select(0)


def is_external_thread(thread: Any) -> bool:
    """True for a thread of the modules in `OUTSIDE`, and for a thread that an asyncio loop outside the ranks starts."""
    loop = asyncio._get_running_loop()
    return _module_of_thread(thread).startswith(OUTSIDE) or (loop is not None and not is_loop_of_rank(loop))


def may_wake_ranks(thread: Any) -> bool:
    """False for a thread outside the simulation that is known never to release a lock for which a rank waits."""
    return not _module_of_thread(thread).startswith(_MODULES_THAT_WAKE_NO_RANK)


def _module_of_thread(thread: Any) -> str:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) or type(thread).__module__
