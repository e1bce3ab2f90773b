"""Event loops of asyncio inside ranks wait in virtual time.

A loop waits in `select`, for a ready file or until its next timer. That would take real time and keep the baton, so
that no other thread or rank could wake the loop. Instead, a loop that a rank makes waits for a simulated
`threading.Event`. Other threads of the rank set it (`call_soon_threadsafe`). So `asyncio.sleep` takes virtual time, and
a loop that no thread will wake is a deadlock.

If the loop also watches other files, such as the pipes of a subprocess, it polls: it waits for them in real time for
0.01 s, then lets 0.01 s of virtual time pass, and repeats.

Not covered: loops that are not an `asyncio.SelectorEventLoop` (uvloop), and loops made before the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

_POLL_SECONDS = 0.01


def loop_maker(is_of_rank: Callable[[], bool], original: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `BaseSelectorEventLoop.__init__`."""

    @wraps(original)
    def make(loop: Any, *arguments: Any, **options: Any) -> None:
        original(loop, *arguments, **options)
        if is_of_rank():
            _wait_in_virtual_time(loop)

    return make


def is_of_rank(loop: Any) -> bool:
    """True if a loop was made by a rank, so that it waits in virtual time."""
    return isinstance(getattr(loop, "_selector", None), _Selector)


def _wait_in_virtual_time(loop: Any) -> None:
    woken = threading.Event()
    wake_by_file = loop._write_to_self

    def write_to_self() -> None:
        wake_by_file()
        woken.set()

    loop._write_to_self = write_to_self
    loop._selector = _Selector(loop._selector, woken)


class _Selector:
    """The selector of a rank's event loop: it waits in virtual time."""

    def __init__(self, selector: Any, woken: threading.Event) -> None:
        self._selector = selector
        self._woken = woken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> Any:
        """Return the ready files. May return none before the time-out has passed: the loop then calls it again."""
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
