"""The timer of `signal.alarm` and `signal.setitimer` in a rank's process, in virtual time.

It rings as a request of the main thread ends, such as a sleep or the wait for a call. So it does not end a wait for a
lock, nor a computation, which takes no virtual time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import ceil, inf
from threading import current_thread, main_thread
from typing import Any

from ddpsim.simulator.runtime.replaced import ReplacedAttributes


class SignalTimer:
    """The timer `ITIMER_REAL` of a rank."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns the virtual time as of the last answer to the rank."""
        self._now = now
        self.due, self._interval = inf, 0.0

    def install(self, is_rank_thread: Callable[[], bool]) -> None:
        """Replace the functions of `signal` on threads of the rank. Cannot be undone."""

        def on_rank(function: Callable[..., Any]) -> Callable[[Any], Any]:
            def wrap(original: Any) -> Any:
                return lambda *arguments: (function if is_rank_thread() else original)(*arguments)

            return wrap

        replaced = ReplacedAttributes()
        real = signal.ITIMER_REAL
        get, set_timer = signal.getitimer, signal.setitimer
        for name, function in (
            ("getitimer", lambda which: self._left() if which == real else get(which)),
            ("setitimer", lambda which, *s: self._set(*s) if which == real else set_timer(which, *s)),
            ("alarm", lambda seconds: ceil(self._set(seconds)[0])),
        ):
            replaced.replace_attribute(signal, name, on_rank(function))

    def _left(self) -> tuple[float, float]:
        return (0.0, 0.0) if self.due == inf else (max(self.due - self._now(), 1e-6), self._interval)

    def _set(self, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        before = self._left()
        self.due, self._interval = self._now() + seconds if seconds else inf, interval
        return before

    def ring(self) -> None:
        """Send the signal, once for all that were due in the last wait."""
        step = self._interval
        self.due = self.due + ((self._now() - self.due) // step + 1) * step if step else inf
        signal.raise_signal(signal.SIGALRM)

    def wrap_sleep(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        """Return a function that sleeps, and in which the timer rings."""

        def sleep_and_ring(seconds: float) -> None:
            end = self._now() + seconds
            while self.due < end and current_thread() is main_thread():
                sleep(max(self.due - self._now(), 0.0))
                seconds = max(end - self._now(), 0.0)
            sleep(seconds)

        return sleep_and_ring
