"""Event loops of asyncio, inside ranks: they wait as everything else in a rank does.

A loop waits in `select`, for a file that is ready or for as long as nothing is due. That takes real time, while the
loop's clock shows virtual time; and whoever waits so keeps the baton, so that no other thread and no other rank could
wake the loop. So a loop that a rank makes waits for an event of the rank's instead, which wakes it when another of its
threads hands it something (`call_soon_threadsafe`), and which may be waited for in virtual time: `asyncio.sleep` is a
wait in virtual time, and a loop that nobody will wake is a deadlock.

If the loop watches other files than its own, as those of a subprocess, which live in real time, it looks at these for a
moment, then lets a moment of virtual time pass, and so on.

Not covered: loops that are no `asyncio.SelectorEventLoop` (uvloop), and those made before the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

_MOMENT_SECONDS = 0.01


def loop_maker(is_of_rank: Callable[[], bool], original: Callable[..., None]) -> Callable[..., None]:
    """For `BaseSelectorEventLoop.__init__`."""

    @wraps(original)
    def make(loop: Any, *arguments: Any, **options: Any) -> None:
        original(loop, *arguments, **options)
        if is_of_rank():
            _let_wait_as_ranks_do(loop)

    return make


def is_of_rank(loop: Any) -> bool:
    """True if a loop waits as everything else in a rank does."""
    return isinstance(getattr(loop, "_selector", None), _Selector)


def _let_wait_as_ranks_do(loop: Any) -> None:
    woken = threading.Event()
    wake_by_file = loop._write_to_self

    def write_to_self() -> None:
        wake_by_file()
        woken.set()

    loop._write_to_self = write_to_self
    loop._selector = _Selector(loop._selector, woken)


class _Selector:
    """The selector of a loop."""

    def __init__(self, selector: Any, woken: threading.Event) -> None:
        self._selector = selector
        self._woken = woken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> Any:
        """What is ready. None of it may be so before the time is over: the loop asks again."""
        ready = self._selector.select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._woken.clear()
            return ready
        if len(self._selector.get_map()) > 1:  # not its own alone
            timeout = _MOMENT_SECONDS if timeout is None else min(timeout, _MOMENT_SECONDS)
            if ready := self._selector.select(timeout):
                return ready
        self._woken.wait(timeout)
        self._woken.clear()
        return self._selector.select(0)
